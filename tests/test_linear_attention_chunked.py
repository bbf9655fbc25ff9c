"""The chunked kernels of linear attention, interpreted on the CPU, against the recurrence in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.kernels import default_choice
from helion_sinkhorn.kernels import linear_attention_chunked_launch as chunked
from helion_sinkhorn.kernels.linear_attention_chunked import ChunkCall
from helion_sinkhorn.linear_attention_error import chunked_budgets, truth
from helion_sinkhorn.offline import Job, compile_for
from helion_sinkhorn.testing import half_ulp, worst

GATES = [" ".join(names) for r in range(4) for names in itertools.combinations(("g", "g_gamma", "gk"), r)]
NAMES = ("q", "k", "v", "g", "g_gamma", "gk")


def problem(batch, steps, heads, dk, dv, gates="gk", strength=1.0, states=True, dtype=torch.float32, seed=0):
    """(inputs by name, do, gradient of the last state)."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(shape, generator=generator)

    keys, values = (batch, steps, heads, dk), (batch, steps, heads, dv)
    inputs = {"q": drawn(*keys), "k": drawn(*keys), "v": drawn(*values)}
    shapes = {"g": keys[:3], "g_gamma": keys[2:3], "gk": keys}
    for name in gates.split():
        inputs[name] = strength * torch.nn.functional.logsigmoid(drawn(*shapes[name]))
    inputs = {name: x.to(dtype) for name, x in inputs.items()}
    do, dend = drawn(*values).to(dtype), None
    if states:
        inputs["initial_state"], dend = (drawn(batch, heads, dk, dv) for _ in range(2))
    return inputs, do, dend


def run(inputs, do, dend, scale, reverse=False):
    """All results by name."""
    arguments = [inputs.get(name) for name in NAMES]
    arguments = *arguments, None, scale, inputs.get("initial_state"), reverse, None
    o, end = chunked.forward(*arguments)
    gradients = chunked.backward(do, dend, *arguments)
    given = [name for name in (*NAMES, "initial_state") if name in inputs]
    return {"o": o, "end": end} | {"d" + n: x for n, x in zip(given, gradients, strict=True)}


def ratios(inputs, do, dend, scale=0.3, reverse=False):
    """The error of every result in units of its budget."""
    actual = run(inputs, do, dend, scale, reverse)
    exact = truth(inputs, do, dend, scale=scale, reverse=reverse)
    operand = "bfloat16" if inputs["q"].dtype == torch.bfloat16 else "float32"
    budgets = chunked_budgets(inputs, do, dend, 64, operand, scale=scale, reverse=reverse)
    assert actual.keys() == exact.keys()
    return {
        name: worst(x, exact[name], budgets[name] + half_ulp(exact[name], x.dtype))
        for name, x in actual.items()
    }


@given(
    st.sampled_from(GATES),
    st.integers(2, 150),
    st.integers(1, 20),
    st.integers(1, 20),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.01, 1.0, 30.0, 1e4]),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    st.integers(0, 1000),
)
def test_any_call_is_within_its_budget(gates, steps, dk, dv, reverse, states, strength, dtype, seed):
    case = problem(1, steps, 2, dk, dv, gates, strength, states, dtype, seed)
    found = ratios(*case, reverse=reverse)
    assert max(found.values()) <= 1, found


@pytest.mark.parametrize("strength", [0.05, 3.0, 100.0], ids=["one product", "some of both", "levels"])
def test_both_ways_to_take_pairs(strength):
    """Half a chunk decays by exp(-26), exp(-77) and exp(-2600) in the middle of the channels."""
    for dtype in (torch.float32, torch.bfloat16):
        case = problem(1, 130, 2, 16, 24, "gk", strength, dtype=dtype)
        assert max(ratios(*case).values()) <= 1


def test_one_step_forgets_everything():
    """A gate of -inf: later steps know nothing of earlier ones, and no NaN comes of it."""
    inputs, do, dend = problem(1, 100, 1, 16, 16, "gk g", 0.1)
    inputs["g"][:, 40] = -torch.inf
    actual = run(inputs, do, dend, 0.3)
    later = {n: x if x.dim() < 3 or n == "initial_state" else x[:, 40:] for n, x in inputs.items()}
    later["initial_state"] = torch.zeros_like(inputs["initial_state"])
    expected = run(later, do[:, 40:], dend, 0.3)
    torch.testing.assert_close(actual["o"][:, 40:], expected["o"], rtol=1e-5, atol=1e-5)
    assert actual["dinitial_state"].abs().max() < 10
    assert all(torch.isfinite(x).all() for x in actual.values())


def test_a_sequence_does_not_know_its_batch():
    inputs, do, dend = problem(3, 100, 2, 16, 16)
    whole = run(inputs, do, dend, 0.3)
    one = run({n: x[1:2] for n, x in inputs.items()}, do[1:2], dend[1:2], 0.3)
    for name, x in one.items():
        assert torch.equal(whole[name][1:2], x), name


FAULTS = {
    "a state of bfloat16": lambda r: r | {"end": r["end"].bfloat16().float()},
    "the last step dropped": lambda r: r | {"o": torch.cat([r["o"][:, :-1], r["o"][:, -2:-1]], 1)},
    "no scale": lambda r: r | {"dq": r["dq"] / 0.3},
    "one entry off by 2 %": lambda r: r | {"dv": r["dv"] * (1 + 0.02 * (r["dv"] == r["dv"].amax()))},
    "a stale dh0": lambda r: r | {"dinitial_state": r["dinitial_state"].roll(1, 1)},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_budget_sees(fault):
    inputs, do, dend = problem(1, 100, 2, 16, 16)
    exact = truth(inputs, do, dend, scale=0.3)
    budgets = chunked_budgets(inputs, do, dend, 64, "float32", scale=0.3)
    wrong = FAULTS[fault](run(inputs, do, dend, 0.3))
    assert max(worst(x, exact[n], budgets[n] + half_ulp(exact[n], x.dtype)) for n, x in wrong.items()) > 1


@pytest.mark.parametrize("key", ["h200", "b200", "mi350"])
def test_defaults_compile_for(key):
    """Matrix units, and nothing that a launch would refuse; the gradients of 64 channels spill on NVIDIA."""
    call = ChunkCall("bfloat16", 64, 128, "gk")
    names = [f"linear_attention_chunk_{part}" for part in ("scores", "walk", "gradients")]
    jobs = [Job(call, default_choice(name, call, DEVICES[key]), batch=128) for name in names]
    for name, binary in zip(names, compile_for(key, jobs), strict=True):
        assert binary.compiled, binary.problems
        assert binary.counts["matrix"]
        assert binary.shared <= DEVICES[key].shared_limit
        assert binary.spill_bytes <= (640 if name.endswith("gradients") else 0)
