"""hc_post on a CPU: its orientation, one rounding, memory, errors; tests/contract has its budgets."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal, randn
from hc_streams import LargestFloat32, one_rounding, post_inputs, post_results

from helion_sinkhorn import hc_post
from helion_sinkhorn.lab.post import budget
from helion_sinkhorn.runtime import pieces


def test_a_permutation_sends_input_streams_to_output_streams():
    """Stream 0 to 1, 1 to 2 and 2 to 0: not its own inverse, so a transposed comb sends them elsewhere."""
    x, comb = randn(5, 3, 8), torch.zeros(5, 3, 3)
    for i, o in ((0, 1), (1, 2), (2, 0)):
        comb[:, i, o] = 1.0
    f, post = torch.zeros(5, 8), torch.zeros(5, 3)
    out = hc_post(f, x, post, comb)
    assert torch.equal(out, x[:, [2, 0, 1]])
    assert torch.equal(hc_post(f, x, post, comb, comb_order="oi"), x[:, [1, 2, 0]])
    leaf, grad = x.clone().requires_grad_(), randn(5, 3, 8, seed=1)
    (dx,) = torch.autograd.grad(hc_post(f, leaf, post, comb), leaf, grad)
    assert torch.equal(dx, grad[:, [1, 2, 0]])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("n", [1, 4, 16])
def test_one_rounding_and_no_more(n, dtype, device):
    inputs = post_inputs(64, n=n, c=1024, dtype=dtype)
    results = post_results(*(t.to(device) for t in inputs))
    *given, bias, grad = (t[None] for t in inputs)
    truth = budget.exact(*given, grad, bias)
    for name in ("out", "df", "dx"):
        assert one_rounding(results[name].cpu(), truth[name][0]) <= 1.03


def test_little_memory_beside_the_results(monkeypatch):
    """Temporary tensors are of a piece of the tokens, and change no bit; but f for a bias's gradient."""
    inputs = post_inputs(50, c=128, dtype=torch.bfloat16)
    whole = post_results(*inputs)
    monkeypatch.setattr(pieces, "ENTRIES", 7 * 4 * 128 + 1)
    with LargestFloat32() as largest:
        in_pieces = post_results(*inputs)
    assert_equal(in_pieces.values(), whole.values())
    assert 7 * 4 * 128 < largest.entries == 50 * 128
    with LargestFloat32() as largest:
        post_results(*inputs[:4], None, *inputs[5:])
    assert 0 < largest.entries <= 7 * 4 * 128


F, X, POST, COMB = torch.zeros(2, 8), torch.zeros(2, 4, 8), torch.zeros(2, 4), torch.zeros(2, 4, 4)
OK = F, X, POST, COMB
REFUSED = {
    "f of the streams' shape": ((X, X, POST, COMB), {}, ValueError,
        r"f has shape \(2, 4, 8\); for x of shape \(2, 4, 8\) pass \(..., C\), \(2, 8\)"),
    "f and x exchanged": ((X, F, POST, COMB), {}, ValueError,
        r"f has shape \(2, 4, 8\); for x of shape \(2, 8\) pass \(..., C\), \(8,\)"),
    "a weight too many": ((F, X, torch.zeros(2, 5), COMB), {}, ValueError,
        r"post has shape \(2, 5\); .* \(..., n\), \(2, 4\)"),
    "TileKernels' trailing dimension": ((F, X, POST[..., None], COMB), {}, ValueError,
        r"post has shape \(2, 4, 1\); .* \(2, 4\): convert with .squeeze\(-1\)$"),
    "f with an axis of streams": ((F[:, None], X, POST, COMB), {}, ValueError,
        r"f has shape \(2, 1, 8\); .* \(2, 8\): convert with .squeeze\(-2\)$"),
    "comb flat": ((F, X, POST, COMB.flatten(-2)), {}, ValueError,
        r"comb has shape \(2, 16\); .* pass \(..., n, n\), \(2, 4, 4\)"),
    "swapped": ((X, F, POST, COMB), {}, ValueError, r"f has shape .*: f comes first, then the streams$"),
    "a bias for each token": ((*OK, F), {}, ValueError, r"bias has shape \(2, 8\); .* pass \(C,\), \(8,\)"),
    "another order": (OK, {"comb_order": "IO"}, ValueError, "comb_order is 'IO'; use one of 'io', 'oi'"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "options", "kind", "said"), REFUSED.values(), ids=REFUSED)
def test_refused_with_what_to_do(arguments, options, kind, said):
    with pytest.raises(kind, match=said):
        hc_post(*arguments, **options)
