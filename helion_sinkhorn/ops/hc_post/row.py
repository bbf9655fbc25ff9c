"""ROW: hc_post as tuning and CI see it."""

from __future__ import annotations

from helion_sinkhorn.ops.hc_post.launch import KERNELS
from helion_sinkhorn.ops.hc_post.score import score
from helion_sinkhorn.ops.hc_post.trials import TRIALS, kernel_calls
from helion_sinkhorn.ops.hc_post.workloads import HcPostWorkload
from helion_sinkhorn.runtime.operator import Operator

ROW = Operator("hc_post", HcPostWorkload, KERNELS, TRIALS, kernel_calls, score=score)
