"""The collapse of mHC followed by the RMSNorm before a sublayer."""
