"""The collapse of mHC with the RMSNorm of what it makes: the input of a sublayer as the sublayer takes it."""
