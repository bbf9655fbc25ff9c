"""ROW: hc_split_sinkhorn as tuning and CI see it."""

from __future__ import annotations

from helion_sinkhorn.lab.operator import Operator
from helion_sinkhorn.lab.split.trials import TRIALS, call_public, kernel_calls
from helion_sinkhorn.lab.split.workloads import HcWorkload
from helion_sinkhorn.ops.mhc.split.launch import KERNELS

FIXED = "tokens", "eps", "post_mult", "post_eps", "comb_order", "size", "norm_eps", "eps_outside"
ROW = Operator(
    "hc_split_sinkhorn", HcWorkload, KERNELS, TRIALS, kernel_calls, call_public=call_public, fixed=FIXED
)
