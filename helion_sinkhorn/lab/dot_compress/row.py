"""ROW: dot compress as tuning and CI see it."""

from __future__ import annotations

from helion_sinkhorn.lab.dot_compress.trials import TRIALS, call_public, kernel_calls, run_call
from helion_sinkhorn.lab.dot_compress.workloads import DotWorkload
from helion_sinkhorn.lab.operator import Operator
from helion_sinkhorn.ops.dot_compress.launch import KERNELS

ROW = Operator(
    "dot_compress",
    DotWorkload,
    KERNELS,
    TRIALS,
    kernel_calls,
    call=run_call,
    call_public=call_public,
)
