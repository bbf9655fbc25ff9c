"""The chunked kernels of linear attention, interpreted on the CPU, against the recurrence in float64."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from attention_problem import assert_within, problem
from hypothesis import given
from hypothesis import strategies as st
from interpreted import FEWER

pytest.importorskip("triton")

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.linear_attention import api as linear_attention
from helion_sinkhorn.ops.linear_attention.chunked import launch as chunked
from helion_sinkhorn.ops.linear_attention.chunked.space import ChunkCall
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.kernel import default_choice

GATES = [" ".join(names) for r in range(4) for names in itertools.combinations(("g", "g_gamma", "gk"), r)]


SIDES = st.integers(1, 20)
CALLS = st.builds(
    problem,
    st.sampled_from(GATES),
    st.tuples(st.just(1), st.integers(2, 150), st.just(2), SIDES, SIDES),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    st.integers(0, 1000),
    strength=st.sampled_from([0.0, 0.01, 1.0, 30.0, 1e4]),
    states=st.booleans(),
    reverse=st.booleans(),
)


@given(CALLS)
@FEWER
def test_any_call_is_within_its_budget(case):
    assert_within(case, case.run_module(chunked), "chunked")


@pytest.mark.parametrize("strength", [0.05, 3.0, 100.0], ids=["one product", "some of both", "levels"])
def test_both_ways_to_take_pairs(strength):
    """Half a chunk decays by exp(-26), exp(-77) and exp(-2600) in the middle of the channels."""
    for dtype in (torch.float32, torch.bfloat16) if strength == 3.0 else (torch.float32,):
        case = problem("gk", (1, 130, 2, 16, 24), dtype, strength=strength)
        assert_within(case, case.run_module(chunked), "chunked")


def test_one_step_forgets_everything():
    """A gate of -inf: later steps know nothing of earlier ones, and no NaN comes of it."""
    case = problem("gk g", (1, 100, 1, 16, 16), strength=0.1)
    inputs, do = case.inputs, case.do
    inputs["g"][:, 40] = -torch.inf
    actual = case.run_module(chunked)
    later = {n: x if n == "initial_state" else x[:, 40:] for n, x in inputs.items()}
    later["initial_state"] = torch.zeros_like(inputs["initial_state"])
    expected = dataclasses.replace(case, inputs=later, do=do[:, 40:]).run_module(chunked)
    torch.testing.assert_close(actual["o"][:, 40:], expected["o"], rtol=1e-5, atol=1e-5)
    assert actual["dinitial_state"].abs().max() < 10
    assert all(torch.isfinite(x).all() for x in actual.values())


def test_a_sequence_does_not_know_its_batch():
    case = problem(shape=(3, 100, 2, 16, 16))
    whole = case.run_module(chunked)
    inputs = {n: x[1:2] for n, x in case.inputs.items()}
    one = dataclasses.replace(case, inputs=inputs, do=case.do[1:2], dend=case.dend[1:2]).run_module(chunked)
    for name, x in one.items():
        assert torch.equal(whole[name][1:2], x), name


def test_launches_are_kept_for_calls_alike_and_no_others(monkeypatch):
    asked = []
    monkeypatch.setattr(door, "launch_kept", lambda key, *tensors: asked.append(key) or True)

    def keys(case, **options):
        asked.clear()
        case.run_module(chunked, **options)
        return tuple(asked)

    shape = (2, 70, 2, 8, 8)
    case = problem(shape=shape)
    own = default_choice(
        KERNELS["linear_attention_chunk_scores"], ChunkCall("float32", 8, 8, "gk"), DEVICES["h200"]
    )
    halves = {**case.inputs, "gk": case.inputs["gk"].half()}
    others = (
        keys(problem(shape=shape, reverse=True)),
        keys(problem(shape=shape, states=False)),
        keys(problem("g gk", shape)),
        keys(problem(shape=(3, 70, 2, 8, 8))),
        keys(problem(shape=(2, 71, 2, 8, 8))),
        keys(dataclasses.replace(case, scale=0.5)),
        keys(dataclasses.replace(case, inputs=halves)),
        keys(case, choice=own),
    )
    assert keys(case) == keys(problem(shape=shape, seed=1))
    assert len({keys(case), *others}) == 1 + len(others)


@pytest.mark.parametrize(
    ("steps", "dk", "dtype", "options", "expected"),
    [
        (64, 128, torch.bfloat16, {}, "chunked"),
        (64, 1, torch.float16, {}, "chunked"),
        (63, 64, torch.bfloat16, {}, "recurrent"),
        (4096, 64, torch.float32, {}, "recurrent"),
        (4096, 129, torch.bfloat16, {}, "recurrent"),
        (4096, 64, torch.bfloat16, {"gv": torch.empty(0)}, "recurrent"),
        (4096, 64, torch.bfloat16, {"cu_seqlens": torch.empty(0)}, "recurrent"),
        (4096, 64, torch.bfloat16, {"method": "recurrent"}, "recurrent"),
        (1, 64, torch.float32, {"method": "chunked"}, "chunked"),
    ],
)
def test_what_auto_takes_on_a_gpu(steps, dk, dtype, options, expected, monkeypatch):
    monkeypatch.setattr(linear_attention, "implementation_for", lambda *_: "helion")
    q, v = (torch.empty((1, steps, 1, d), dtype=dtype) for d in (dk, 8))
    call = {"method": "auto", "gv": None, "cu_seqlens": None, **options}
    assert linear_attention._serves("auto", q=q, v=v, **call) == expected


@pytest.mark.parametrize("backwards", [False, True])
def test_a_state_of_a_pool_is_read_as_a_copy(monkeypatch, backwards):
    """Its strides may be beyond 32-bit indices, which Helion chooses by the number of entries."""
    seen = []
    monkeypatch.setattr(chunked, "start", lambda p, name, call, tensors, *rest: seen.append(tensors[5]))
    p = problem("", (2, 64, 3, 8, 8)).problem
    state = torch.randn(2, 7, 3, 8, 8)[:, 4]
    scratch = chunked.Scratch(p.q, p.k, torch.zeros(2, 3, 1, 8), torch.zeros(64, 64))
    chunked.walk(p, scratch, p.v if backwards else None, state)
    (read,) = seen
    assert torch.equal(read, state)
    assert read.is_contiguous()
