"""The score of hc_post: what its programs move, and how far its predictions are from measured times."""

from __future__ import annotations

import pytest

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.machine.binary import Binary, Job
from helion_sinkhorn.operators import KERNELS
from helion_sinkhorn.ops.hc_post.score import score, walk_of
from helion_sinkhorn.ops.hc_post.space import PostCall, backward_config
from helion_sinkhorn.runtime.kernel import Choice, candidates, default_choice

FORWARD, BACKWARD = "hc_post_forward", "hc_post_backward"


def binary(choice: Choice, call: PostCall, instructions=336, occupancy=32, loop=0, device="h200") -> Binary:
    threads = dict(choice.config)["num_warps"] * DEVICES[device].warp_size
    loops = ({"instructions": loop},) if loop else ()
    counts = {"instructions": instructions}
    return Binary(device, Job(call, choice), threads=threads, occupancy=occupancy, counts=counts, loops=loops)


@pytest.mark.parametrize(("name", "streams"), [(FORWARD, 9), (BACKWARD, 14)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_programs_together_move_every_stream_once(name, streams, dtype):
    call = PostCall(dtype, 4, 4096)
    for choice in candidates(KERNELS[name], call, DEVICES["h200"]):
        walk = walk_of(binary(choice, call), 96)
        assert walk.moved == 96 * streams * 4096 * (4 if dtype == "float32" else 2)
        assert walk.programs * walk.steps * (walk.taken + walk.written) == walk.moved


def test_programs_that_share_a_token_read_its_gradient_again():
    call = PostCall("bfloat16", 16, 4096)
    walk = walk_of(binary(default_choice(KERNELS[BACKWARD], call, DEVICES["h200"]), call), 96)
    assert walk.programs == 4 * 96
    assert walk.moved == 96 * (3 * 16 + 2) * 4096 * 2
    again = 3 * (16 + 1 + 1)
    assert walk.programs * walk.steps * (walk.taken + walk.written) == walk.moved + 96 * again * 4096 * 2


@pytest.mark.parametrize(
    ("name", "columns", "us", "facts"),
    [
        # measured at commit ec4f489: defaults on an H200, 8192 tokens; their code under Triton 3.6
        (FORWARD, 4096, 150.2, (336, 32, 0)), (FORWARD, 7168, 261.4, (336, 32, 0)),
        (BACKWARD, 4096, 222.5, (1208, 16, 634)), (BACKWARD, 7168, 388.5, (1192, 20, 622)),
    ],
)  # fmt: skip
def test_it_predicts_up_to_a_third_more_than_was_measured(name, columns, us, facts):
    call = PostCall("bfloat16", 4, columns)
    found = score(binary(default_choice(KERNELS[name], call, DEVICES["h200"]), call, *facts), 8192) / 1e3
    assert us < found < 1.35 * us


def test_columns_on_their_way_are_faster_than_none():
    """docs/helion.md: 272 us without, 227 with three stages."""
    call, device = PostCall("bfloat16", 4, 4096), DEVICES["h200"]

    def us(stages, *facts):
        choice = Choice(BACKWARD, backward_config(call, device, 4, stages), (), "")
        return score(binary(choice, call, *facts), 8192) / 1e3

    none, three = us(0, 920, 20, 533), us(3, 1208, 16, 634)
    assert three < none < 1.1 * 272


@pytest.mark.parametrize("device", ["h200", "b200", "mi300x", "mi350"])
@pytest.mark.parametrize("name", [FORWARD, BACKWARD])
def test_more_tokens_and_more_instructions_never_score_better(name, device):
    call = PostCall("bfloat16", 4, 4096)
    choice = default_choice(KERNELS[name], call, DEVICES[device])
    scores = [score(binary(choice, call, device=device), tokens) for tokens in (128, 1024, 8192, 65536)]
    assert scores == sorted(scores)
    for tokens in (128, 65536):
        good, worse = (score(binary(choice, call, n, device=device), tokens) for n in (336, 9000))
        assert worse > good
