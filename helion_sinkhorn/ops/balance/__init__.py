"""Updates balanced by the L2 norms of their rows and columns, the Sinkhorn of optimizers."""
