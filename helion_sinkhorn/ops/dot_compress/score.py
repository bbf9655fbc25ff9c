"""A time predicted for the programs of dot compress: what each moves (machine.streaming)."""

from __future__ import annotations

import math

from helion_sinkhorn.machine.binary import Binary
from helion_sinkhorn.machine.streaming import Walk, nanoseconds
from helion_sinkhorn.ops.dot_compress.space import DotCall, padded


def walk_of(binary: Binary, batch: int) -> Walk:
    """The walk of a candidate's programs over `batch` elements."""
    call: DotCall = binary.job.call
    choice = binary.job.choice
    config, variant = dict(choice.config), dict(choice.variant)
    size, tile = 4 if call.dtype == "float32" else 2, config["block_sizes"][0]
    block, k = variant["block_d"], padded(call.k)
    blocks = math.ceil(call.d / block)
    held = block * k * call.parts * size
    x, y, b = (batch * n * size for n in (call.m * call.d, call.m * call.k, call.d * call.k * call.parts))
    if choice.kernel == "dot_compress_product":
        return Walk(batch * blocks, math.ceil(call.m / tile), 0, tile * (block + k) * size, 0, x + y + b)
    rows = min(variant["rows"], call.m)
    walks, steps = batch * math.ceil(call.m / rows), math.ceil(rows / tile)
    if choice.kernel == "dot_compress_expand":
        again = 2 * held if "depth" in variant else 0
        taken, written = 2 * tile * k * size + again, tile * block * size
        return Walk(walks * blocks, steps, 2 * held - again, taken, written, x + 2 * y + 2 * b)
    taken, written = tile * block * size, tile * k * size
    if blocks == 1:
        return Walk(walks, steps, held, taken, written, x + y + b)
    return Walk(walks, steps * blocks, 0, taken + held, written // blocks, x + y + b)


def score(binary: Binary, batch: int) -> float:
    """Nanoseconds for `batch` elements: lower is better."""
    return nanoseconds(binary, walk_of(binary, batch), dict(binary.job.choice.config)["num_stages"])
