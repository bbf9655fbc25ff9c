"""The collapse with a norm after it: what its results may be off by, and how it is run."""
