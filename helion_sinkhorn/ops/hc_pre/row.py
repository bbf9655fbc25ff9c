"""ROW: hc_pre as tuning and CI see it."""

from __future__ import annotations

from helion_sinkhorn.ops.hc_pre.launch import KERNELS
from helion_sinkhorn.ops.hc_pre.trials import TRIALS, call_public, kernel_calls
from helion_sinkhorn.ops.hc_pre.workloads import HcPreWorkload
from helion_sinkhorn.runtime.operator import Operator

FIXED = "tokens", "coefficients"
ROW = Operator("hc_pre", HcPreWorkload, KERNELS, TRIALS, kernel_calls, call_public=call_public, fixed=FIXED)
