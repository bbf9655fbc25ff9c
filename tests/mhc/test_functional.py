"""hc_expand, hc_coeffs and hc_head on a CPU, against float64 of the equations."""

from __future__ import annotations

import math
import re

import mhc_equations as equations
import pytest
import torch
from autograd_calls import assert_equal, randn, values_and_gradients
from mhc_equations import assert_equations

from helion_sinkhorn import hc_boundary, hc_coeffs, hc_expand, hc_head, hc_post, hc_pre, hc_site, nn
from helion_sinkhorn.ops.mhc import head as of_head
from helion_sinkhorn.ops.mhc.site import crossing

NARROW = (torch.bfloat16, torch.float16)


def site_inputs(*lead, n=4, c=12, dtype=torch.float32):
    """(x, fn, scale, base)."""
    rows = n * n + 2 * n
    return (
        randn(*lead, n, c, dtype=dtype), randn(rows, n * c, seed=1, scale=0.2),
        torch.tensor([0.7, 1.1, 0.9]), randn(rows, seed=2),
    )  # fmt: skip


def head_inputs(*lead, n=4, c=12, dtype=torch.float32):
    """(x, fn, scale, base) and the upstream gradient of y."""
    x, fn, scale, base = site_inputs(*lead, n=n, c=c, dtype=dtype)
    return (x, fn[:n], scale[:1], base[:n]), [randn(*lead, c, seed=9, dtype=dtype)]


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW, torch.float64], ids=str)
@pytest.mark.parametrize("n", [1, 3, 4, 16])
def test_expand_copies_and_its_gradient_is_a_sum_rounded_once(n, dtype):
    h, upstream = randn(2, 5, 7, dtype=dtype), randn(2, 5, n, 7, seed=1, dtype=dtype)
    x, dh = values_and_gradients(lambda h: (hc_expand(h, n),), [h], [upstream])
    assert x.is_contiguous()
    assert torch.equal(x, h.unsqueeze(-2).repeat(1, 1, n, 1))
    assert dh.dtype == dtype
    exact = upstream.double().sum(-2)
    limit = torch.finfo(dtype).eps / 2 * exact.abs() + n * 2.0**-23 * upstream.abs().sum(-2)
    assert ((dh.double() - exact).abs() <= limit).all()
    alone = values_and_gradients(lambda h: (hc_expand(h, n),), [h[1, 2]], [upstream[1, 2]])
    assert_equal(alone, (x[1, 2], dh[1, 2]))


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("shape", [(7,), (0, 7), (3, 0)], ids=str)
def test_expanding_copies_any_leading_shape(shape, n):
    h = randn(*shape)
    x = hc_expand(h, n)
    assert torch.equal(x, h.unsqueeze(-2).repeat(*[1] * (h.dim() - 1), n, 1))
    x.add_(1)
    assert torch.equal(h, randn(*shape))


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW], ids=str)
@pytest.mark.parametrize(("n", "c"), [(4, 12), (1, 5), (3, 7), (16, 4)])
def test_head_against_float64(n, c, dtype):
    tensors, upstream = head_inputs(2, 3, n=n, c=c, dtype=dtype)
    # dx of hc_mixes and of hc_pre meet
    results = assert_equations(lambda *t: (hc_head(*t),), equations.head, tensors, upstream, rounded=2)
    assert results[0].dtype == dtype


def test_options_of_a_head_reach_its_operators():
    (x, fn, scale, base), _ = head_inputs(7)
    wide = [t.double() for t in (x, fn, scale, base)]
    (expected,) = equations.head(*wide, eps=0.5, norm_eps=1e-2)
    torch.testing.assert_close(
        hc_head(x, fn, scale, base, eps=0.5, norm_eps=1e-2).double(), expected, rtol=0, atol=1e-5
    )
    outside = equations.mixes(*wide[:2], norm_eps=0.5, eps_outside=True)
    pre = (outside * wide[2] + wide[3]).sigmoid() + 1e-6
    y = hc_head(x, fn, scale, base, norm_eps=0.5, eps_outside=True)
    torch.testing.assert_close(y.double(), equations.collapse(wide[0], pre), rtol=0, atol=1e-5)
    weight = randn(fn.size(1), seed=8).abs()
    assert torch.equal(hc_head(x, fn, scale, base, norm_weight=weight), hc_head(x, fn * weight, scale, base))


@pytest.mark.parametrize("saturation", [-85.0, -40.0, -17.5, 17.5, 40.0, 85.0])
def test_gradient_of_a_saturated_gate_is_right_by_itself(saturation):
    """With torch.sigmoid it is exactly 0 from a = 17 on."""
    (x, fn, scale, base), (upstream,) = head_inputs(1)
    base = torch.full_like(base, saturation)
    fn = torch.zeros_like(fn)
    *_, dbase = values_and_gradients(lambda *t: (hc_head(*t),), (x, fn, scale, base), [upstream])
    along = (upstream.unsqueeze(-2) * x).double().sum(-1)[0]
    e = math.exp(-abs(saturation))
    torch.testing.assert_close(dbase.double(), along * e / (1 + e) ** 2, rtol=1e-5, atol=0)


def test_gate_of_zero_has_a_derivative():
    """|a| has none at 0, where transformers' parameters begin."""
    (x, fn, scale, base), (upstream,) = head_inputs(3)
    tensors = x, torch.zeros_like(fn), scale, torch.zeros_like(base)
    *_, dbase = values_and_gradients(lambda *t: (hc_head(*t),), tensors, [upstream])
    torch.testing.assert_close(dbase, (upstream.unsqueeze(-2) * x).sum((0, -1)) / 4)


X, FN, SCALE, BASE = torch.zeros(2, 4, 3), torch.zeros(4, 12), torch.ones(1), torch.zeros(4)


def head(x=X, fn=FN, scale=SCALE, base=BASE, **options):
    return lambda: hc_head(x, fn, scale, base, **options)


REFUSED = {
    "h is a number": (lambda: hc_expand(torch.tensor(1.0), 2), ValueError,
                      r"h has shape \(\); pass \(\.\.\., C\)"),
    "n is a float": (lambda: hc_expand(X, 2.0), TypeError, "n is 2.0; pass an int of at least 1"),
    "n is a bool": (lambda: hc_expand(X, True), TypeError, "n is True; pass an int"),
    "fn of another n": (head(fn=FN[:3]), ValueError,
                        r"fn has shape \(3, 12\); for x of shape \(2, 4, 3\) pass \(4, 12\)"),
    "scale of three": (head(scale=torch.ones(3)), ValueError, r"scale has shape \(3,\); .* \(1,\)"),
    "base of one": (head(base=SCALE), ValueError, r"base has shape \(1,\); .* pass \(4,\)"),
    "eps is a string": (head(eps="1"), TypeError, "eps is '1'; pass a finite float"),
    "eps is nan": (head(eps=math.nan), ValueError, "eps is nan; pass a finite"),
}  # fmt: skip


PROJECTION = torch.ones(24, 32), torch.ones(3), torch.zeros(24)
TAKE_STREAMS = {
    "hc_pre": lambda x, f, pre, comb: hc_pre(x, pre),
    "hc_post": lambda x, f, pre, comb: hc_post(f, x, pre, comb),
    "hc_coeffs": lambda x, f, pre, comb: hc_coeffs(x, *PROJECTION),
    "hc_head": lambda x, f, pre, comb: hc_head(x, torch.ones(4, 32), torch.ones(1), torch.zeros(4)),
    "hc_site": lambda x, f, pre, comb: hc_site(x, *PROJECTION),
    "hc_boundary": lambda x, f, pre, comb: hc_boundary(f, x, pre, comb, pre, *PROJECTION),
    "HyperConnection": lambda x, f, pre, comb: nn.HyperConnection(8)(x),
    "HyperHead": lambda x, f, pre, comb: nn.HyperHead(8)(x),
    "HyperBoundary": lambda x, f, pre, comb: nn.HyperBoundary(8)(f, x, pre, comb, pre),
}


@pytest.mark.parametrize("function", [name for name in TAKE_STREAMS if name.startswith("hc_")])
@pytest.mark.parametrize("shape", [(2, 17, 3), (2, 0, 3), (2, 4, 0), (3,)], ids=str)
def test_streams_are_refused_before_they_are_projected(function, shape, monkeypatch):
    for module in (of_head, crossing):
        monkeypatch.delattr(module, "projected")
    with pytest.raises(ValueError, match=r"x has shape .*; pass \(\.\.\., n, C\): n streams, 1 to 16, of C"):
        TAKE_STREAMS[function](torch.zeros(shape), X, X, X)


@pytest.mark.parametrize("lead", [(3, 5), (2, 4), (20,), (4,)], ids=str)
@pytest.mark.parametrize("function", TAKE_STREAMS)
def test_merged_streams_are_refused_with_what_separates_them(function, lead):
    """Megatron has (s, b, n C), and a batch may be as large as n."""
    x, others = torch.ones(*lead, 32), [torch.ones(*lead, *end) for end in ((8,), (4,), (4, 4))]
    shape = re.escape(str(tuple(x.shape)))
    with pytest.raises(ValueError, match=rf"has shape {shape}, as merged streams have; pass .*: ") as error:
        TAKE_STREAMS[function](x, *others)
    remedy = re.search(r"\w+(\.unflatten\(-1, \(4, 8\)\)), or merged=True", str(error.value))[1]
    TAKE_STREAMS[function](eval(f"x{remedy}"), *others)


@pytest.mark.parametrize(("call", "kind", "said"), REFUSED.values(), ids=REFUSED)
def test_refused_with_what_to_do(call, kind, said):
    with pytest.raises(kind, match=said):
        call()


class Ran(torch.utils._python_dispatch.TorchDispatchMode):
    """Fails where anything is computed."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        pytest.fail(f"{function} ran")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        # the width of one stream: mixes once took each stream for a token
        (
            {"fn": torch.ones(24, 12)},
            r"x has shape \(2, 5, 4, 12\), .*; or, .* not, fn of shape \(24, 48\) and not \(24, 12\)",
        ),
        (
            {"fn": torch.ones(20, 48)},
            r"fn has shape \(20, 48\); for x of shape \(2, 5, 4, 12\) pass \(24, 48\)",
        ),
        ({"scale": torch.ones(2)}, "scale has shape"),
        ({"base": torch.ones(5)}, "base has shape"),
        ({"norm_weight": torch.ones(12)}, "norm_weight has shape"),
        ({"sinkhorn_iters": -1}, "sinkhorn_iters is -1"),
        ({"form": "exp"}, "form is 'exp'"),
        ({"form": "log", "eps": math.nan}, "eps is nan"),
        ({"sinkhorn_iters": 0, "norm_eps": 0.0}, "norm_eps is 0"),
        ({"eps": math.nan}, "eps is nan"),
        ({"comb_order": "x"}, "comb_order is 'x'"),
        ({"precision": "bf16"}, "precision is 'bf16'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
@pytest.mark.parametrize("function", [hc_coeffs, hc_site])
def test_what_is_wrong_is_refused_before_anything_is_computed(function, changed, said):
    x, fn, scale, base = site_inputs(2, 5)
    with pytest.raises(ValueError, match=said), Ran():
        function(**{"x": x, "fn": fn, "scale": scale, "base": base, **changed})
