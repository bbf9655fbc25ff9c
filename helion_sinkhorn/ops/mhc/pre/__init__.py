"""The collapse of mHC: a weighted sum over the residual streams."""
