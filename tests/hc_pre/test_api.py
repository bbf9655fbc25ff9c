"""hc_pre on a CPU: its sum, one rounding, memory, errors; tests/contract has its budgets."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal
from hc_streams import LargestFloat32, one_rounding, pre_inputs, pre_results

from helion_sinkhorn import hc_pre
from helion_sinkhorn.lab.pre import budget
from helion_sinkhorn.runtime import pieces


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("n", [1, 4, 16])
def test_one_rounding_and_no_more(n, dtype, device):
    inputs = pre_inputs(64, n=n, c=1024, dtype=dtype)
    results, truth = pre_results(*(t.to(device) for t in inputs)), budget.exact(*inputs)
    assert one_rounding(results["y"].cpu(), truth["y"]) <= 1.03
    assert one_rounding(results["dx"].cpu(), truth["dx"]) <= 1.03


def test_little_memory_beside_the_results(monkeypatch):
    """Temporary tensors are of a piece of the tokens, and pieces change no bit."""
    inputs = pre_inputs(50, c=128, dtype=torch.bfloat16)
    whole = pre_results(*inputs)
    monkeypatch.setattr(pieces, "ENTRIES", 7 * 4 * 128 + 1)
    with LargestFloat32() as largest:
        in_pieces = pre_results(*inputs)
    assert_equal(in_pieces.values(), whole.values())
    assert 0 < largest.entries <= 7 * 4 * 128


X, PRE = torch.zeros(2, 4, 8), torch.zeros(2, 4)
REFUSED = {
    "a weight too many": ((X, torch.zeros(2, 5)), {}, ValueError,
        r"pre has shape \(2, 5\); for this x pass \(..., n\), \(2, 4\)"),
    "weights of all tokens": ((X, PRE[0]), {}, ValueError, r"pre has shape \(4,\); .* \(2, 4\)"),
    "TileKernels' trailing dimension": ((X, PRE[..., None]), {}, ValueError,
        r"pre has shape \(2, 4, 1\); .* \(2, 4\): convert with .squeeze\(-1\)$"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "options", "kind", "said"), REFUSED.values(), ids=REFUSED)
def test_refused_with_what_to_do(arguments, options, kind, said):
    with pytest.raises(kind, match=said):
        hc_pre(*arguments, **options)
