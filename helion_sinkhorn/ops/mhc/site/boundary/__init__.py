"""hc_boundary: new streams, their collapse and their projection in one pass over the old ones."""
