"""The chunked kernels of linear attention, interpreted on the CPU, against the recurrence in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

from helion_sinkhorn.kernels import linear_attention_chunked_launch as chunked
from helion_sinkhorn.linear_attention_error import chunked_budgets, truth
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
    arguments = *arguments, scale, inputs.get("initial_state"), reverse
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
