"""ROW: hc_split_sinkhorn as tuning and CI see it."""

from __future__ import annotations

from helion_sinkhorn.ops.hc_split_sinkhorn.launch import KERNELS
from helion_sinkhorn.ops.hc_split_sinkhorn.trials import TRIALS, kernel_calls
from helion_sinkhorn.ops.hc_split_sinkhorn.workloads import HcWorkload
from helion_sinkhorn.ops.sinkhorn.score import score
from helion_sinkhorn.runtime.operator import Operator

ROW = Operator("hc_split_sinkhorn", HcWorkload, KERNELS, TRIALS, kernel_calls, score=score)
