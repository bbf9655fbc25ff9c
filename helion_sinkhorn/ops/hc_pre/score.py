"""A time predicted for the programs of hc_pre: what each moves (machine.streaming)."""

from __future__ import annotations

import math

from helion_sinkhorn.machine.binary import Binary
from helion_sinkhorn.machine.streaming import Walk, nanoseconds
from helion_sinkhorn.ops.hc_pre.launch import FORWARD
from helion_sinkhorn.ops.hc_pre.space import PreCall


def walk_of(binary: Binary, batch: int) -> Walk:
    """The walk of a candidate's programs over `batch` tokens; weights and their gradients are small."""
    call: PreCall = binary.job.call
    block, size = dict(binary.job.choice.config)["block_sizes"], 4 if call.dtype == "float32" else 2
    row = call.columns * size
    if binary.job.choice.kernel == FORWARD:
        tokens, columns = block
        taken = tokens * min(columns, call.columns) * size
        programs = math.ceil(batch / tokens) * math.ceil(call.columns / columns)
        return Walk(programs, 1, 0, call.n * taken, taken, batch * row * (call.n + 1))
    columns, _ = block
    taken = min(columns, call.columns) * size
    steps = math.ceil(call.columns / columns)
    return Walk(batch, steps, 0, (call.n + 1) * taken, call.n * taken, batch * row * (2 * call.n + 1))


def score(binary: Binary, batch: int) -> float:
    """Nanoseconds for `batch` tokens: lower is better."""
    return nanoseconds(binary, walk_of(binary, batch), 1)
