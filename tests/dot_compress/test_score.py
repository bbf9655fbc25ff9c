"""The score of kernels that stream matrices: what its programs move, and what it prefers."""

from __future__ import annotations

import itertools

import pytest

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.machine import streaming
from helion_sinkhorn.machine.binary import Binary, Job
from helion_sinkhorn.ops.dot_compress.score import score, walk_of
from helion_sinkhorn.ops.dot_compress.space import DotCall, config
from helion_sinkhorn.runtime.kernel import Choice
from helion_sinkhorn.tuning import ranking

CALL = DotCall("bfloat16", 3219, 256, 64, 1)


def binary(kernel="apply", tile=64, stages=3, device="h200", call=CALL, occupancy=12, loop=None, **variant):
    row = DEVICES[device]
    variant = {"block_d": 256, **({} if kernel == "product" else {"rows": 512}), **variant}
    loop = loop or {"instructions": 50 + variant["block_d"], "matrix": 16}
    choice = Choice(f"dot_compress_{kernel}", config(tile, 4, stages), tuple(variant.items()), "")
    counts = {name: number + 200 for name, number in loop.items()}
    return Binary(
        device,
        Job(call, choice),
        threads=4 * row.warp_size,
        occupancy=occupancy,
        counts=counts,
        loops=(loop,),
    )


@pytest.mark.parametrize("kernel", ["product", "apply", "expand"])
@pytest.mark.parametrize("parts", [1, 2])
def test_programs_together_move_every_tensor_once(kernel, parts):
    call = DotCall("bfloat16", 2048, 256, 64, parts)
    whole = walk_of(binary(kernel, call=call, **({} if kernel == "product" else {"rows": 2048})), 7)
    steps = whole.programs * whole.steps * (whole.taken + whole.written)
    b = 7 * 256 * 64 * parts * 2
    assert steps + whole.programs * whole.before == whole.moved - (b if kernel == "product" else 0)
    # smaller blocks read again what they share, and never less
    small = walk_of(binary(kernel, call=call, block_d=64), 7)
    assert small.moved == whole.moved
    assert small.programs * small.steps * (small.taken + small.written) >= steps


@pytest.mark.parametrize("device", ["h200", "b200", "mi300x", "mi350"])
def test_a_small_batch_wants_many_programs_and_a_large_one_long_walks(device):
    def best(batch, kernel, name, values):
        return min(values, key=lambda v: score(binary(kernel, device=device, **{name: v}), batch))

    assert best(16, "product", "block_d", (256, 64)) == 64
    for kernel in ("apply", "expand"):
        assert best(16, kernel, "rows", (4096, 2048, 256)) == 256
        assert best(1152, kernel, "rows", (64, 128, 4096)) == 4096


@pytest.mark.parametrize("batch", [16, 1152])
@pytest.mark.parametrize("kernel", ["product", "apply", "expand"])
def test_more_work_or_fewer_loads_under_way_never_score_better(kernel, batch):
    usual = score(binary(kernel), batch)
    for worse in (
        binary(kernel, loop={"instructions": 900, "matrix": 16}),
        binary(kernel, loop={"instructions": 306, "matrix": 90}),
        binary(kernel, stages=2),
        binary(kernel, stages=1),
        binary(kernel, occupancy=4),
    ):
        assert score(worse, batch) >= usual
    assert score(binary(kernel, stages=1), batch) > usual


@pytest.mark.parametrize("device", ["h200", "b200", "mi350"])
def test_the_time_grows_with_the_batch_and_is_that_of_memory_at_least(device):
    scores = [score(binary(device=device), 1 << k) for k in range(4, 13)]
    assert all(a < b for a, b in itertools.pairwise(scores))
    least = walk_of(binary(device=device), 1 << 12).moved
    assert scores[-1] > least / streaming.MACHINES[DEVICES[device].arch].bandwidth


def test_an_unrolled_loop_costs_what_its_instructions_do():
    rolled = binary(rows=128)
    unrolled = Binary(**{**vars(rolled), "counts": {"instructions": 800, "matrix": 48}, "loops": ()})
    assert score(unrolled, 1152) >= score(rolled, 1152)


def test_the_pick_keeps_the_default_where_memory_is_the_limit():
    default, wide = binary(rows=2048), binary(rows=256)
    assert ranking.pick(score, [default, wide], 16)[0] is wide
    assert ranking.pick(score, [default, wide], 1152)[0] is default
