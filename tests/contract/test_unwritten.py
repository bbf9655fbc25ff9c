"""Every entry of every result and gradient is written, at the edges of what a call may be.

tests/conftest.py has NaN in what the package allocates; the specifications say what belongs there.
"""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from attention_problem import problem
from autograd_calls import randn
from contract import of_size
from launches import kernels_on_cpu
from operator_table import GATES, OPERATORS, Row

from helion_sinkhorn import dot_compress, recurrent_linear_attention, reference, sinkhorn
from helion_sinkhorn.ops.mhc.site.boundary.backward import ways as boundary_ways

TOLERANCES = {"rtol": 1e-3, "atol": 1e-5}
ROWS = {name: row for name, row in OPERATORS.items() if not row.kernels}
COMPOSED = "hc_site, ", "hc_boundary, "
"""A site and its update in other forms, of the kernels of other rows."""
BY_NIGHT = pytest.mark.nightly(
    "one to three seconds each, interpreted; the fewest tokens and streams run always"
)


@pytest.fixture(params=["eager", "kernels", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    """Where tensors are; a CPU also for kernels, whose bodies Helion interprets."""
    if request.param == "kernels":
        pytest.importorskip("triton", reason="the bodies import Triton")
        kernels_on_cpu(monkeypatch)
    return "cuda" if request.param == "gpu" else "cpu"


def differentiated(function, given, device, dtype):
    """(results, a function from numbers of results to gradients of their sum)."""
    leaves = [x.to(device, dtype).requires_grad_() for x in given.values()]
    output = function(*leaves)
    results = (output,) if isinstance(output, torch.Tensor) else tuple(output)

    def gradients(used):
        terms = [results[k].sum() * (k + 1) for k in used if results[k].requires_grad]
        if not terms:
            return [None] * len(leaves)
        return torch.autograd.grad(terms, leaves, retain_graph=True, allow_unused=True)

    return results, gradients


def assert_written(row, given, device, alone=True):
    """All results and their gradients equal the specification's, together and one result at a time."""
    results, gradients = differentiated(row.function, given, device, torch.float32)
    exact, exact_gradients = differentiated(row.specification, given, "cpu", torch.float64)
    for result, expected in zip(results, exact, strict=True):
        torch.testing.assert_close(result.cpu().double(), expected, **TOLERANCES)
    every = list(range(len(exact)))
    for used in [every] + [[k] for k in every] * (alone and len(every) > 1):
        for name, gradient, expected in zip(given, gradients(used), exact_gradients(used), strict=True):
            zeros = torch.zeros_like(given[name])
            sides = (zeros if x is None else x.cpu() for x in (gradient, expected))
            a, b = (x.double() for x in sides)
            torch.testing.assert_close(a, b, **TOLERANCES, msg=lambda m, name=name: f"d{name}: {m}")


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        pytest.param(name, tokens, marks=BY_NIGHT if tokens > 1 and name.startswith(COMPOSED) else ())
        for name in ROWS
        for tokens in (0, 1, 67)
        if tokens < 2 or "attention" not in name
    ],
)
def test_numbers_of_tokens(device, name, tokens):
    assert_written(ROWS[name], ROWS[name].arguments(tokens), device)


@pytest.mark.parametrize(
    ("name", "n", "c"),
    [
        pytest.param(name, *size, marks=BY_NIGHT if size[0] > 1 and name.startswith(COMPOSED) else ())
        for name in ROWS
        if name.startswith("hc_")
        for size in ((1, 9), (3, 1), (5, 70))
    ],
)
def test_numbers_of_streams_and_columns(device, name, n, c, monkeypatch):
    of_size(monkeypatch, n, c, mixes=5)
    assert_written(ROWS[name], ROWS[name].arguments(3), device)


@pytest.mark.parametrize("tokens", [0, 1, 67])
def test_hc_boundary_in_one_pass(monkeypatch, tokens):
    pytest.importorskip("triton", reason="the bodies import Triton")
    kernels_on_cpu(monkeypatch)
    monkeypatch.setattr(boundary_ways, "is_faster", lambda *given: True)
    assert_written(ROWS["hc_boundary"], ROWS["hc_boundary"].arguments(tokens), "cpu")


def matrices(*shape, specified=None, **options):
    exact = options if specified is None else specified
    given = {"logits": randn(*shape)}
    return Row(partial(sinkhorn, **options), partial(reference.sinkhorn, **exact), None), given


def products(*shape, d=4, k=2, z=True):
    shapes = {"x": (*shape, d), "y": (*shape, k), "z": (*shape[:-1], d, k)}
    given = {name: randn(*s, seed=len(s)) for name, s in shapes.items() if z or name != "z"}
    return Row(dot_compress, reference.dot_compress, None), given


def attention(batch=1, steps=9, heads=1, dk=3, dv=2, gates=GATES, offsets=None, states=True, **options):
    lengths = () if offsets is None else tuple(b - a for a, b in itertools.pairwise(offsets))
    given = problem(" ".join(gates), (batch, steps, heads, dk, dv), states=states, lengths=lengths).inputs
    given.pop("cu_seqlens", None)

    def of(run, **options):
        def call(*tensors):
            packs = None if offsets is None else torch.tensor(offsets, device=tensors[0].device)
            named = dict(zip(given, tensors, strict=True))
            return run(**named, cu_seqlens=packs, output_final_state=True, **options)

        return call

    exact = {name: value for name, value in options.items() if name != "method"}
    run = of(recurrent_linear_attention, **options)
    return Row(run, of(reference.recurrent_linear_attention, **exact), None), given


CHUNKED = {"gates": ("g", "g_gamma", "gk"), "method": "chunked"}
EDGES = {
    "sinkhorn, no iteration": matrices(3, 2, 4, n_iters=0),
    "sinkhorn, one iteration": matrices(3, 2, 4, n_iters=1),
    "sinkhorn, one row": matrices(3, 1, 4),
    "sinkhorn, one column": matrices(3, 4, 1),
    "sinkhorn, one matrix": matrices(5, 7),
    "sinkhorn, no leading dimension of several": matrices(2, 0, 3, 3),
    "sinkhorn, log": matrices(33, 3, 5, form="log", n_iters=7),
    "sinkhorn, log with restarts": matrices(5, 16, 16, form="log", eps=0.0, n_iters=33),
    "sinkhorn, columns first": matrices(33, 6, 2, first="cols"),
    "sinkhorn, beyond a block": matrices(3, 17, 33, n_iters=3),
    "sinkhorn, beyond kernels": matrices(1, 130, 2, n_iters=2),
    "sinkhorn, implicit, no matrix": matrices(0, 3, 3, backward="implicit", specified={}),
    "dot_compress, without z": products(67, 3, z=False),
    "dot_compress, beyond a block": products(2, 35, d=17, k=9),
    "dot_compress, no row": products(2, 0),
    "dot_compress, one element": products(1, 1, d=1, k=1),
    "attention, beyond a span": attention(steps=67),
    "attention, no batch": attention(batch=0),
    "attention, no head": attention(heads=0),
    "attention, one row and column": attention(dk=1, dv=1, steps=3),
    "attention, no state": attention(states=False),
    "attention, no gate": attention(gates=(), states=False),
    "attention, padded pack": attention(offsets=[3, 3, 5, 7]),
    "attention, padded pack backwards": attention(offsets=[3, 3, 5, 7], reverse=True),
    # more than two slots of kept states before the first sequence, and one after the last
    **{
        f"attention, long padding{' backwards' * reverse}": attention(
            steps=274, offsets=[130, 137, 137, 203, 204], reverse=reverse
        )
        for reverse in (False, True)
    },
    "attention, padded pack without gates": attention(offsets=[0, 5], gates=(), states=False),
    "attention, padding alone": attention(offsets=[5, 5, 5]),
    "attention, full pack": attention(offsets=[0, 0, 9]),
    "attention, pack of no step": attention(steps=0, offsets=[0, 0]),
    "chunked, no step": attention(steps=0, **CHUNKED),
    "chunked, one step": attention(steps=1, **CHUNKED),
    "chunked, beyond a chunk": attention(steps=67, **CHUNKED),
    "chunked, no head": attention(heads=0, **CHUNKED),
    "chunked, no batch, no gate": attention(batch=0, gates=(), states=False, method="chunked"),
    "chunked, backwards, no state": attention(
        steps=67, gates=(), states=False, reverse=True, method="chunked"
    ),
}


@pytest.mark.parametrize("edge", EDGES)
def test_edges(device, edge):
    assert_written(*EDGES[edge], device, alone=False)
