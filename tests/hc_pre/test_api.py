"""hc_pre on a CPU: values and gradients against float64, the contract, errors."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal
from hc_streams import LargestFloat32, one_rounding, pre_errors, pre_inputs, pre_results
from hypothesis import given
from hypothesis import strategies as st

from helion_sinkhorn import hc_pre, reference
from helion_sinkhorn.lab.pre import budget
from helion_sinkhorn.runtime import pieces

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def assert_right(found, *inputs):
    """Every result within its budget."""
    errors = pre_errors(found, *inputs)
    assert max(errors.values()) <= 1, errors


def test_the_sum_number_by_number():
    x, pre, dy = pre_inputs(3, n=3, c=5, dtype=torch.float64)
    found = pre_results(x, pre, dy)
    for t in range(3):
        y = [sum(pre[t, i].item() * x[t, i, c].item() for i in range(3)) for c in range(5)]
        torch.testing.assert_close(found["y"][t].tolist(), y)
        for i in range(3):
            dx = [pre[t, i].item() * dy[t, c].item() for c in range(5)]
            torch.testing.assert_close(found["dx"][t, i].tolist(), dx)
            dpre = sum(dy[t, c].item() * x[t, i, c].item() for c in range(5))
            assert found["dpre"][t, i].item() == pytest.approx(dpre)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("n", [1, 4, 16])
def test_one_rounding_and_no_more(n, dtype, device):
    inputs = pre_inputs(64, n=n, c=1024, dtype=dtype)
    found, truth = pre_results(*(t.to(device) for t in inputs)), budget.exact(*inputs)
    assert one_rounding(found["y"].cpu(), truth["y"]) <= 1.03
    assert one_rounding(found["dx"].cpu(), truth["dx"]) <= 1.03
    # what is asked: weights rounded first, or products before they are added, are far beyond it
    x, pre, _ = inputs
    assert one_rounding(reference.hc_pre(x.float(), pre.to(dtype).float()).to(dtype), truth["y"]) > 1.2
    if n > 1:
        assert one_rounding(reference.hc_pre(x, pre.to(dtype)), truth["y"]) > 1.2


@pytest.mark.parametrize("n", range(1, 17))
def test_float32_is_right_to_a_millionth(n):
    inputs = pre_inputs(8, n=n, c=4099)
    x, pre, dy = inputs
    found, truth = pre_results(*inputs), budget.exact(*inputs)
    sizes = {
        "y": (pre.unsqueeze(-1) * x).norm(dim=-2),
        "dx": truth["dx"].abs(),
        "dpre": (dy.unsqueeze(-2) * x).norm(dim=-1),
    }
    for name, size in sizes.items():
        assert ((found[name] - truth[name]).abs() / size).max() <= 1e-6


def test_float64_is_the_specification():
    inputs = pre_inputs(7, n=5, dtype=torch.float64)
    found, truth = pre_results(*inputs), budget.exact(*inputs)
    assert {t.dtype for t in found.values()} == {torch.float64}
    for name, t in truth.items():
        torch.testing.assert_close(found[name], t, rtol=1e-13, atol=1e-13)


@given(
    st.integers(1, 16), st.integers(1, 200), st.lists(st.integers(0, 5), max_size=3),
    st.sampled_from(FLOATS[:3]), st.sampled_from(FLOATS[:3]), st.integers(0, 99),
)  # fmt: skip
def test_any_call_against_float64(n, c, lead, dtype, coefficients, seed):
    inputs = pre_inputs(*lead, n=n, c=c, dtype=dtype, coefficients=coefficients, seed=seed)
    assert_right(pre_results(*inputs), *inputs)


@pytest.mark.parametrize("coefficients", FLOATS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dtypes_of_streams_and_weights(dtype, coefficients):
    inputs = pre_inputs(5, dtype=dtype, coefficients=coefficients)
    found = pre_results(*inputs)
    assert [found[name].dtype for name in budget.RESULTS] == [dtype, dtype, coefficients]
    assert_right(found, *inputs)


def test_little_memory_beside_the_results(monkeypatch):
    """Temporary tensors are of a piece of the tokens, and pieces change no bit."""
    inputs = pre_inputs(50, c=128, dtype=torch.bfloat16)
    whole = pre_results(*inputs)
    monkeypatch.setattr(pieces, "ENTRIES", 7 * 4 * 128 + 1)
    with LargestFloat32() as largest:
        found = pre_results(*inputs)
    assert_equal(found.values(), whole.values())
    assert 0 < largest.entries <= 7 * 4 * 128


X, PRE = torch.zeros(2, 4, 8), torch.zeros(2, 4)
REFUSED = {
    "x of one dimension": ((X[0, 0], PRE), {}, ValueError, r"x has shape \(8,\); pass \(..., n, C\)"),
    "seventeen streams": ((torch.zeros(17, 8), torch.zeros(17)), {}, ValueError,
        r"x has shape \(17, 8\); .* n streams, 1 to 16"),
    "no stream": ((X[:, :0], PRE[:, :0]), {}, ValueError, r"x has shape \(2, 0, 8\); pass"),
    "no entries": ((X[..., :0], PRE), {}, ValueError, r"x has shape \(2, 4, 0\); .* at least 1"),
    "a weight too many": ((X, torch.zeros(2, 5)), {}, ValueError,
        r"pre has shape \(2, 5\); for this x pass \(..., n\), \(2, 4\)"),
    "weights of all tokens": ((X, PRE[0]), {}, ValueError, r"pre has shape \(4,\); .* \(2, 4\)"),
    "TileKernels' trailing dimension": ((X, PRE[..., None]), {}, ValueError,
        r"pre has shape \(2, 4, 1\); .* \(2, 4\): convert with .squeeze\(-1\)$"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_what_to_do(case):
    arguments, options, kind, said = REFUSED[case]
    with pytest.raises(kind, match=said):
        hc_pre(*arguments, **options)
