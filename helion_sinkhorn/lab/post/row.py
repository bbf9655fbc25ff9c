"""ROW: hc_post as tuning and CI see it."""

from __future__ import annotations

from helion_sinkhorn.lab.operator import Operator
from helion_sinkhorn.lab.post.trials import TRIALS, call_public, kernel_calls
from helion_sinkhorn.lab.post.workloads import HcPostWorkload
from helion_sinkhorn.ops.mhc.post.launch import KERNELS

FIXED = "tokens", "coefficients", "has_bias", "comb_order"
ROW = Operator("hc_post", HcPostWorkload, KERNELS, TRIALS, kernel_calls, call_public=call_public, fixed=FIXED)
