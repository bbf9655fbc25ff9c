"""quantize: the calls of its kernel, and what they have to give, bit for bit."""
