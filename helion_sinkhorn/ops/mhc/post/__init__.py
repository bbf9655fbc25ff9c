"""The expansion of mHC: mixed residual streams and the output of a sublayer."""
