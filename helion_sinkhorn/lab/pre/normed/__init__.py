"""The collapse with a norm behind it: what its results may be off by, and how it is run."""
