"""mHC's projection: the product of the residual streams with M rows, divided by the norm of the streams."""
