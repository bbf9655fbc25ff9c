"""ROW: hc_mixes as tuning and CI see it."""

from __future__ import annotations

from helion_sinkhorn.lab.mixes.trials import TRIALS, call_public, kernel_calls
from helion_sinkhorn.lab.mixes.workloads import MixesWorkload
from helion_sinkhorn.lab.operator import Operator
from helion_sinkhorn.ops.mhc.mixes.launch import KERNELS

FIXED = "tokens", "norm_eps", "norm_weight", "eps_outside"
ROW = Operator("hc_mixes", MixesWorkload, KERNELS, TRIALS, kernel_calls, call_public=call_public, fixed=FIXED)
