"""As much of tritonbench as `sinkhorn` touches, for machines without a checkout; see test_tritonbench.py."""
