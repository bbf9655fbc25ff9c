"""The collapse followed by a norm: its error budget, and how it is run."""
