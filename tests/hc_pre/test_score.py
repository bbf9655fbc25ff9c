"""The score of hc_pre: what its programs move, and how far its predictions are from measured times."""

from __future__ import annotations

import pytest

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.machine.binary import Binary, Job
from helion_sinkhorn.operators import KERNELS
from helion_sinkhorn.ops.hc_pre.score import score, walk_of
from helion_sinkhorn.ops.hc_pre.space import PreCall
from helion_sinkhorn.runtime.kernel import Choice, candidates, default_choice

FORWARD, BACKWARD = "hc_pre_forward", "hc_pre_backward"


def binary(choice: Choice, call: PreCall, instructions=160, occupancy=64, loop=0, device="h200") -> Binary:
    threads = dict(choice.config)["num_warps"] * DEVICES[device].warp_size
    loops = ({"instructions": loop},) if loop else ()
    counts = {"instructions": instructions}
    return Binary(device, Job(call, choice), threads=threads, occupancy=occupancy, counts=counts, loops=loops)


@pytest.mark.parametrize(("name", "streams"), [(FORWARD, 5), (BACKWARD, 9)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_programs_together_move_every_stream_once(name, streams, dtype):
    call = PreCall(dtype, 4, 4096)
    for choice in candidates(KERNELS[name], call, DEVICES["h200"]):
        walk = walk_of(binary(choice, call), 96)
        assert walk.moved == 96 * streams * 4096 * (4 if dtype == "float32" else 2)
        assert walk.programs * walk.steps * (walk.taken + walk.written) == walk.moved


def test_a_last_block_that_is_not_full_costs_as_a_full_one():
    call = PreCall("bfloat16", 4, 5000)
    walk = walk_of(binary(default_choice(KERNELS[FORWARD], call, DEVICES["h200"]), call), 96)
    assert walk.moved == 96 * 5 * 5000 * 2
    assert walk.programs * walk.steps * (walk.taken + walk.written) == 96 * 5 * 5 * 1024 * 2


@pytest.mark.parametrize(
    ("name", "columns", "us", "facts"),
    [
        # measured at commit ec4f489: defaults on an H200, 8192 tokens; their code under Triton 3.6
        (FORWARD, 4096, 79.8, (160, 64, 0)), (FORWARD, 5120, 99.5, (160, 64, 0)),
        (FORWARD, 7168, 138.3, (160, 64, 0)), (BACKWARD, 4096, 148.0, (384, 32, 180)),
        (BACKWARD, 5120, 183.3, (368, 28, 174)), (BACKWARD, 7168, 257.8, (368, 28, 174)),
    ],
)  # fmt: skip
def test_it_predicts_up_to_a_third_more_than_was_measured(name, columns, us, facts):
    call = PreCall("bfloat16", 4, columns)
    found = score(binary(default_choice(KERNELS[name], call, DEVICES["h200"]), call, *facts), 8192) / 1e3
    assert us < found < 1.35 * us


@pytest.mark.parametrize("device", ["h200", "b200", "mi300x", "mi350"])
@pytest.mark.parametrize("name", [FORWARD, BACKWARD])
def test_more_tokens_and_more_instructions_never_score_better(name, device):
    call = PreCall("bfloat16", 4, 4096)
    choice = default_choice(KERNELS[name], call, DEVICES[device])
    scores = [score(binary(choice, call, device=device), tokens) for tokens in (128, 1024, 8192, 65536)]
    assert scores == sorted(scores)
    for tokens in (128, 65536):
        good, worse = (score(binary(choice, call, n, device=device), tokens) for n in (160, 4000))
        assert worse > good
