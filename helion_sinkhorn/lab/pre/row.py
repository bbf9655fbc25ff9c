"""ROW: hc_pre as tuning and CI see it."""

from __future__ import annotations

from helion_sinkhorn.lab.operator import Operator
from helion_sinkhorn.lab.pre.trials import TRIALS, call_public, kernel_calls
from helion_sinkhorn.lab.pre.workloads import HcPreWorkload
from helion_sinkhorn.ops.mhc.pre.launch import KERNELS

FIXED = "tokens", "coefficients"
ROW = Operator("hc_pre", HcPreWorkload, KERNELS, TRIALS, kernel_calls, call_public=call_public, fixed=FIXED)
