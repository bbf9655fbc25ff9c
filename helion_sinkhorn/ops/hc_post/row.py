"""ROW: hc_post as tuning and CI see it."""

from __future__ import annotations

from helion_sinkhorn.ops.hc_post.launch import KERNELS
from helion_sinkhorn.ops.hc_post.trials import TRIALS, call_public, kernel_calls
from helion_sinkhorn.ops.hc_post.workloads import HcPostWorkload
from helion_sinkhorn.runtime.operator import Operator

FIXED = "tokens", "coefficients", "has_bias", "comb_order"
ROW = Operator("hc_post", HcPostWorkload, KERNELS, TRIALS, kernel_calls, call_public=call_public, fixed=FIXED)
