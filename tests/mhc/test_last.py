"""hc_last: the last update of the streams and their collapse, beside the functions that it is made of."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal
from hc_streams import post_inputs
from launches import kernels_on_cpu, noted_on_cpu
from torch._subclasses import FakeTensorMode

from helion_sinkhorn import hc_post, hc_pre
from helion_sinkhorn.mhc import last as module
from helion_sinkhorn.mhc.last import hc_last
from helion_sinkhorn.ops.mhc.site.boundary.last import launch

FORMS = [(own, norm, bias, order) for own in (0, 1) for norm, bias, order in ((0, 0, "io"), (1, 1, "oi"))]
each_form = pytest.mark.parametrize(("own", "norm", "bias", "order"), FORMS)


def drawn(*lead, own, norm, bias, n=4, c=24, dtype=torch.bfloat16):
    """(arguments, keywords) of hc_last."""
    *update, of_bias, _ = post_inputs(*lead, n=n, c=c, dtype=dtype, has_bias=bool(bias))
    pre = torch.rand(*lead, n, generator=torch.Generator().manual_seed(1)) if own else None
    weight = torch.linspace(0.5, 1.5, c) if norm else None
    return (*update, pre), {"bias": of_bias, "y_norm_weight": weight, "y_norm_eps": 1e-3}


def composed(f, x, post, comb, pre, bias=None, comb_order="io", **norm):
    streams = hc_post(f, x, post, comb, bias, comb_order=comb_order)
    weights = torch.full_like(post, 1 / x.size(-2)) if pre is None else pre
    return hc_pre(streams, weights, **norm)


@each_form
def test_it_is_hc_post_and_hc_pre_with_their_gradients(own, norm, bias, order):
    given, options = drawn(2, 3, own=own, norm=norm, bias=bias, dtype=torch.float32)
    options["comb_order"] = order
    leaves = [t.requires_grad_() for t in (*given, *options.values()) if isinstance(t, torch.Tensor)]
    upstream = torch.randn(2, 3, 24, generator=torch.Generator().manual_seed(2))
    each = []
    for function in (hc_last, composed):
        y = function(*given, **options)
        each.append([y.detach(), *torch.autograd.grad(y, leaves, upstream)])
    assert_equal(*each)


@each_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_kernel_has_the_bits_of_the_two(monkeypatch, dtype, own, norm, bias, order):
    """Interpreted: a norm's squares are added up in one order there."""
    given, options = drawn(2, 3, own=own, norm=norm, bias=bias, dtype=dtype)
    options["comb_order"] = order
    launched = noted_on_cpu(monkeypatch, lambda name, arguments: name)
    expected = composed(*given, **options)
    launched.clear()
    kernels_on_cpu(monkeypatch, module.__name__)
    y = hc_last(*given, **options)
    assert launched == [launch.LAST]
    assert y.is_contiguous()
    assert torch.equal(y, expected)


def test_a_call_that_needs_a_gradient_or_is_too_wide_is_the_two(monkeypatch):
    kernels_on_cpu(monkeypatch, module.__name__)
    launched = noted_on_cpu(monkeypatch, lambda name, arguments: name)
    given, options = drawn(3, own=1, norm=0, bias=0)
    hc_last(given[0].requires_grad_(), *given[1:], **options).sum().backward()
    assert given[0].grad is not None
    for n, c in ((5, 8), (2, 8200)):
        wide, others = drawn(1, own=1, norm=0, bias=0, n=n, c=c)
        hc_last(*wide, **others)
    assert launch.LAST not in launched
    with torch.no_grad():
        hc_last(*given, **options)
    assert launched[-1] == launch.LAST


def test_merged_streams_and_no_tokens():
    given, options = drawn(3, own=1, norm=1, bias=1)
    y = hc_last(*given, **options)
    f, x, *rest = given
    assert torch.equal(hc_last(f, x.flatten(-2), *rest, merged=True, **options), y)
    nothing, options = drawn(0, own=0, norm=1, bias=0)
    assert hc_last(*nothing, **options).shape == (0, 24)


def test_torch_knows_the_operator(monkeypatch):
    kernels_on_cpu(monkeypatch, module.__name__)
    (f, x, post, comb, pre), options = drawn(2, 3, own=1, norm=1, bias=1)
    given = f, x, post, comb, options["bias"], pre, options["y_norm_weight"], 1e-3, "io"
    operator = torch.ops.helion_sinkhorn.hc_last
    torch.library.opcheck(operator, given, test_utils=("test_schema", "test_faketensor"))
    with FakeTensorMode() as mode:
        fake = operator(*[mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in given])
    found = operator(*given)
    assert (fake.shape, fake.stride(), fake.dtype) == (found.shape, found.stride(), found.dtype)
    mapped = torch.func.vmap(lambda *t: operator(*t, *given[4:5], t[2], *given[6:]), in_dims=1)
    swapped = mapped(f, x, post, comb)
    for k in range(3):
        alone = f[:, k], x[:, k], post[:, k], comb[:, k]
        assert torch.equal(swapped[k], operator(*alone, given[4], post[:, k], *given[6:]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pre": torch.ones(3, 5)}, r"pre has shape \(3, 5\)"), ({"comb_order": "xy"}, "comb_order is 'xy'"),
        ({"y_norm_weight": torch.ones(5)}, "y_norm_weight has shape"),
        ({"y_norm_eps": 0.0}, "y_norm_eps is 0"),
    ],
)  # fmt: skip
def test_bad_arguments(change, message):
    (*update, pre), options = drawn(3, own=1, norm=0, bias=0)
    options |= {"pre": pre, **change}
    with pytest.raises(ValueError, match=message):
        hc_last(*update, **options)


@pytest.mark.gpu
@each_form
@pytest.mark.parametrize("c", [67, 4096, 5120, 7168])
def test_on_a_gpu(c, own, norm, bias, order):
    given, options = drawn(37, own=own, norm=norm, bias=bias, c=c)
    options["comb_order"] = order
    given = [t if t is None else t.cuda() for t in given]
    options = {k: t.cuda() if isinstance(t, torch.Tensor) else t for k, t in options.items()}
    y, expected = hc_last(*given, **options), composed(*given, **options)
    alone = hc_last(*[t if t is None else t[5:6] for t in given], **options)
    assert torch.equal(alone, y[5:6])
    if norm:
        # squares in another order: a neighbour here and there
        torch.testing.assert_close(y, expected, rtol=2.0**-7, atol=0.0)
        assert (y != expected).float().mean() < 0.01
    else:
        assert torch.equal(y, expected)
