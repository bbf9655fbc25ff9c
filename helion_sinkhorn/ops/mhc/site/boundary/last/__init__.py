"""The end of the residual path: the last update of the streams and their collapse, no stream stored."""
