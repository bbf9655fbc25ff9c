"""quantize: the input of a sublayer in float8, with a scale for each group of columns."""
