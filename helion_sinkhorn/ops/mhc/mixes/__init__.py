"""mHC's projection: a product of the residual streams with M rows, divided by the streams' norm."""
