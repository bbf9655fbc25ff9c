"""ROW: hc_split_sinkhorn as tuning and CI see it."""

from __future__ import annotations

from helion_sinkhorn.ops.hc_split_sinkhorn.launch import KERNELS
from helion_sinkhorn.ops.hc_split_sinkhorn.trials import TRIALS, call_public, kernel_calls
from helion_sinkhorn.ops.hc_split_sinkhorn.workloads import HcWorkload
from helion_sinkhorn.runtime.operator import Operator

FIXED = "tokens", "eps", "post_mult", "post_eps", "comb_order", "size", "norm_eps", "eps_outside"
ROW = Operator(
    "hc_split_sinkhorn", HcWorkload, KERNELS, TRIALS, kernel_calls, call_public=call_public, fixed=FIXED
)
