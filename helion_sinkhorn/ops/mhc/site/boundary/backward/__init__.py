"""The backward of hc_boundary in one pass over the streams, and one for the gradient of the projection."""
