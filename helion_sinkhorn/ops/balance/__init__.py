"""Sinkhorn for optimizers: updates balanced by the L2 norms of their rows and columns."""
