"""ROW: recurrent linear attention as tuning and CI see it."""

from __future__ import annotations

from helion_sinkhorn.lab.linear_attention.trials import TRIALS, call_public, kernel_calls, run_call
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.lab.operator import Operator
from helion_sinkhorn.ops.linear_attention.chunked import launch as chunked
from helion_sinkhorn.ops.linear_attention.gates import launch as gates
from helion_sinkhorn.ops.linear_attention.recurrent import launch as recurrent

KERNELS = {**recurrent.KERNELS, **gates.KERNELS, **chunked.KERNELS}
ROW = Operator(
    "linear_attention",
    AttentionWorkload,
    KERNELS,
    TRIALS,
    kernel_calls,
    call=run_call,
    call_public=call_public,
)
