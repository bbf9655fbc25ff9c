"""A time predicted for the programs of hc_post: what each moves (machine.streaming)."""

from __future__ import annotations

import math

from helion_sinkhorn.machine.binary import Binary
from helion_sinkhorn.machine.streaming import Walk, nanoseconds
from helion_sinkhorn.ops.hc_post.launch import FORWARD
from helion_sinkhorn.ops.hc_post.space import PostCall


def walk_of(binary: Binary, batch: int) -> Walk:
    """The walk of a candidate's programs over `batch` tokens; coefficients and their gradients are small."""
    call: PostCall = binary.job.call
    block, size = dict(binary.job.choice.config)["block_sizes"], 4 if call.dtype == "float32" else 2
    row, n = call.columns * size, call.n
    if binary.job.choice.kernel == FORWARD:
        tokens, columns = block
        taken = tokens * min(columns, call.columns) * size
        programs = math.ceil(batch / tokens) * math.ceil(call.columns / columns)
        return Walk(programs, 1, 0, (n + 1) * taken, n * taken, batch * row * (2 * n + 1))
    pieces, _ = block
    taken = min(pieces * call.run, call.columns) * size
    steps, shares = math.ceil(call.columns / (pieces * call.run)), math.ceil(n / call.served)
    # every share of a token reads the upstream gradient and the output again
    read, written = n + 1 + call.served, 1 + call.served
    return Walk(batch * shares, steps, 0, read * taken, written * taken, batch * row * (3 * n + 2))


def score(binary: Binary, batch: int) -> float:
    """Nanoseconds for `batch` tokens: lower is better."""
    stages = dict(binary.job.choice.config).get("range_num_stages", (0, 0))[1]
    return nanoseconds(binary, walk_of(binary, batch), max(1, stages))
