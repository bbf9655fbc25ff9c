"""Configs for a device that is not in this machine, by a score of machine code compiled for it.

`KERNELS` are those whose pick takes less time than the default in the median on an H200 and on an H100, under
each Triton (tests/tuning/test_ranking.py asks tuning_cache/*/calibration.json).  Others keep their defaults.
"""

KERNELS = "sinkhorn_forward", "sinkhorn_backward", "sinkhorn_backward_history"
