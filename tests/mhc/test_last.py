"""hc_last: the last update of the streams and their collapse, beside the functions that it is made of."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal
from hc_streams import post_inputs
from launches import kernels_on_cpu, noted_on_cpu
from torch.utils._pytree import tree_leaves, tree_map_only

from helion_sinkhorn import hc_head, hc_post, hc_pre
from helion_sinkhorn.mhc import last as module
from helion_sinkhorn.mhc.last import Head, hc_last
from helion_sinkhorn.ops.mhc.site.boundary.head.launch import HEAD, SUMS
from helion_sinkhorn.ops.mhc.site.boundary.last import launch

FORMS = [(own, norm, bias, order) for own in (0, 1) for norm, bias, order in ((0, 0, "io"), (1, 1, "oi"))]
each_form = pytest.mark.parametrize(("own", "norm", "bias", "order"), FORMS)


def drawn(*lead, own, norm, bias, n=4, c=24, dtype=torch.bfloat16):
    """(arguments, keywords) of hc_last."""
    *update, of_bias, _ = post_inputs(*lead, n=n, c=c, dtype=dtype, has_bias=bool(bias))
    pre = torch.rand(*lead, n, generator=torch.Generator().manual_seed(1)) if own else None
    weight = torch.linspace(0.5, 1.5, c) if norm else None
    return (*update, pre), {"bias": of_bias, "y_norm_weight": weight, "y_norm_eps": 1e-3}


def head_of(n=4, c=24, weighted=False, **eps):
    """A head whose weights differ by token and by stream."""
    g = torch.Generator().manual_seed(3)
    fn, base = (torch.randn(*shape, generator=g) for shape in ((n, n * c), (n,)))
    weight = torch.linspace(0.5, 2.0, n * c) if weighted else None
    return Head(0.5 * fn, torch.tensor([0.7]), base, **eps, norm_weight=weight)


def in_float64(streams, head, y_norm_weight, y_norm_eps):
    """The equations."""
    streams, weights = streams.double().cpu(), head.norm_weight
    fn, scale, base = (t.double().cpu() for t in head[:3])
    rows, fn = streams.flatten(-2), fn if weights is None else fn * weights.double().cpu()
    r = (rows.square().mean(-1, keepdim=True) + head.norm_eps).rsqrt()
    pre = (r * (rows @ fn.mT) * scale + base).sigmoid() + head.eps
    y = (pre.unsqueeze(-1) * streams).sum(-2)
    if y_norm_weight is None:
        return y
    return y * (y.square().mean(-1, keepdim=True) + y_norm_eps).rsqrt() * y_norm_weight.double().cpu()


def composed(f, x, post, comb, pre=None, *, head=None, bias=None, comb_order="io", **norm):
    """hc_last by the functions."""
    streams = hc_post(f, x, post, comb, bias, comb_order=comb_order)
    if head is None:
        return hc_pre(streams, torch.full_like(post, 1 / x.size(-2)) if pre is None else pre, **norm)
    y = hc_head(streams, *head[:3], **dict(zip(Head._fields[3:], head[3:], strict=True)))
    if norm.get("y_norm_weight") is None:
        return y
    return hc_pre(y.unsqueeze(-2), torch.ones_like(y[..., :1], dtype=torch.float32), **norm)


def differentiated(y, leaves):
    """A result and the gradients of what it is made of."""
    upstream = torch.randn(2, 3, 24, generator=torch.Generator().manual_seed(2))
    return [y.detach(), *torch.autograd.grad(y, leaves, upstream)]


@pytest.mark.parametrize("headed", [False, True])
@each_form
def test_it_is_the_functions_with_their_gradients(own, norm, bias, order, headed):
    given, options = drawn(2, 3, own=own and not headed, norm=norm, bias=bias, dtype=torch.float32)
    options |= {"comb_order": order, "head": head_of(weighted=bool(norm), eps=0.5) if headed else None}
    leaves = tree_leaves((given, options))
    leaves = [t.requires_grad_() for t in leaves if isinstance(t, torch.Tensor)]
    assert_equal(*(differentiated(function(*given, **options), leaves) for function in (hc_last, composed)))


@each_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_kernel_has_the_bits_of_the_two(monkeypatch, dtype, own, norm, bias, order):
    """Interpreted: a norm's squares are added up in one order there."""
    given, options = drawn(2, 3, own=own, norm=norm, bias=bias, dtype=dtype)
    options["comb_order"] = order
    launched = noted_on_cpu(monkeypatch)
    expected = composed(*given, **options)
    launched.clear()
    kernels_on_cpu(monkeypatch, module.__name__)
    y = hc_last(*given, **options)
    assert launched == [launch.LAST]
    assert y.is_contiguous()
    assert torch.equal(y, expected)


@pytest.mark.parametrize("headed", [False, True])
def test_a_call_that_needs_a_gradient_or_is_too_large_is_the_functions(monkeypatch, headed):
    kernels_on_cpu(monkeypatch, module.__name__)
    launched = noted_on_cpu(monkeypatch)
    given, options = drawn(3, own=not headed, norm=0, bias=0)
    options["head"] = head_of() if headed else None
    hc_last(given[0].clone().requires_grad_(), *given[1:], **options).sum().backward()
    # the kernels of a head take neither one stream nor one column
    for n, c in ((5, 8), (2, 8200), *([(1, 8), (2, 1)] if headed else [])):
        large, others = drawn(1, own=not headed, norm=0, bias=0, n=n, c=c)
        others["head"] = head_of(n, c) if headed else None
        assert torch.equal(hc_last(*large, **others), composed(*large, **others))
    assert not {launch.LAST, SUMS, HEAD} & {*launched}
    hc_last(*given, **options)
    assert launched[-1] == (HEAD if headed else launch.LAST)


def test_merged_streams_and_no_tokens():
    given, options = drawn(3, own=1, norm=1, bias=1)
    y = hc_last(*given, **options)
    f, x, *rest = given
    assert torch.equal(hc_last(f, x.flatten(-2), *rest, merged=True, **options), y)
    nothing, options = drawn(0, own=0, norm=1, bias=0)
    assert hc_last(*nothing, **options).shape == (0, 24)


@pytest.mark.parametrize("headed", [False, True])
def test_torch_knows_the_operators(monkeypatch, headed):
    """Fakes have the metadata of results, and a map over tokens the values of the call of all."""
    kernels_on_cpu(monkeypatch, module.__name__)
    (*update, pre), options = drawn(2, 3, own=1, norm=1, bias=1)
    bias, weight, head = options["bias"], options["y_norm_weight"], head_of()[:3]

    operators = torch.ops.helion_sinkhorn
    operator = operators.hc_last_head if headed else operators.hc_last

    def arguments(f, x, post, comb, pre):
        rest = (*head, weight, "io", 1e-6, 1e-6, 1e-3) if headed else (pre, weight, 1e-3, "io")
        return f, x, post, comb, bias, *rest

    given = arguments(*update, pre)
    torch.library.opcheck(operator, given, test_utils=("test_schema", "test_faketensor"))
    mapped = torch.func.vmap(lambda *t: operator(*arguments(*t)), in_dims=1)
    assert torch.equal(mapped(*update, pre), operator(*given).transpose(0, 1))


@pytest.mark.parametrize(("n", "c"), [(4, 24), (3, 67), (2, 300)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("norm", "order"), [(0, "io"), (1, "oi")])
def test_a_head_by_its_kernels(monkeypatch, dtype, n, c, norm, order):
    """A float32 y differs by its sums' order, a narrow one rarely, by its last rounding."""
    (f, x, post, comb, _), options = drawn(5, own=0, norm=norm, bias=norm, n=n, c=c, dtype=dtype)
    options["comb_order"], head = order, head_of(n, c, weighted=bool(norm), norm_eps=0.1, eps=0.5)
    launched = noted_on_cpu(monkeypatch)
    expected = composed(f, x, post, comb, head=head, **options)
    bias, *of_norm = (options[name] for name in ("bias", "y_norm_weight", "y_norm_eps"))
    exact = in_float64(hc_post(f, x, post, comb, bias, comb_order=order), head, *of_norm)
    launched.clear()
    kernels_on_cpu(monkeypatch, module.__name__)
    y = hc_last(f, x, post, comb, head=head, **options)
    assert launched == [SUMS, HEAD]
    assert y.is_contiguous()
    if dtype == torch.float32:
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    else:
        torch.testing.assert_close(y, expected, rtol=torch.finfo(dtype).eps, atol=1e-4)
        assert (y != expected).float().mean() < 0.02
    error = (y.double() - exact).abs()
    assert (error <= torch.finfo(dtype).eps * (1 + norm) * exact.abs() + 2e-5).all()
    alone = hc_last(*[t[2:3] for t in (f, x, post, comb)], head=head, **options)
    assert torch.equal(alone, y[2:3])


@pytest.mark.parametrize("where", ["eager", "kernels"])
@pytest.mark.parametrize("headed", [False, True])
def test_out(monkeypatch, where, headed):
    if where == "kernels":
        kernels_on_cpu(monkeypatch)
        kernels_on_cpu(monkeypatch, module.__name__)
    for lead in ((2, 3), (0,)):
        given, options = drawn(*lead, own=not headed, norm=1, bias=1)
        options["head"] = head_of() if headed else None
        expected, out = hc_last(*given, **options), torch.empty_like(given[0])
        assert hc_last(*given, **options, out=out) is out
        assert_equal([out], [expected])
    with pytest.raises(ValueError, match=r"out has shape \(4, 24\); for x of shape"):
        hc_last(*given, **options, out=torch.empty(4, 24, dtype=torch.bfloat16))
    options["y_norm_weight"] = torch.ones(24, requires_grad=True)
    with pytest.raises(NotImplementedError, match="y_norm_weight requires one; call within"):
        hc_last(*given, **options, out=out)
    if headed:
        fn = torch.empty(4, 96)
        given, options = drawn(2, 3, own=False, norm=1, bias=1)
        over = fn.view(torch.bfloat16).view(-1)[: given[0].numel()].view_as(given[0])
        with pytest.raises(ValueError, match="out overlaps fn; pass memory of its own"):
            hc_last(*given, head=head_of()._replace(fn=fn), **options, out=over)


def test_a_compiler_knows_heads(monkeypatch):
    kernels_on_cpu(monkeypatch, module.__name__)
    (f, x, post, comb, _), options = drawn(3, own=0, norm=1, bias=1)
    head = head_of()

    def last(f, x, out):
        return hc_last(f, x, post, comb, head=head, **options, out=out)

    out = torch.empty_like(f)
    assert torch.compile(last, backend="aot_eager", fullgraph=True)(f, x, out) is out
    assert torch.equal(out, last(f, x, None))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"pre": torch.ones(3, 5)}, ValueError, r"pre has shape \(3, 5\)"),
        ({"comb_order": "xy"}, ValueError, "comb_order is 'xy'"),
        ({"y_norm_weight": torch.ones(5)}, ValueError, "y_norm_weight has shape"),
        ({"y_norm_eps": 0.0}, ValueError, "y_norm_eps is 0"),
        (
            {"pre": torch.ones(3, 4), "head": head_of()}, ValueError,
            "pre and head are given; pass pre=None with a head",
        ),
        ({"head": (1, 2, 3)}, TypeError, "head is a tuple; pass helion_sinkhorn.mhc.last.Head"),
        ({"head": head_of(3)}, ValueError, r"fn has shape \(3, 72\); for x of shape"),
        ({"head": head_of()._replace(base=torch.ones(5))}, ValueError, r"base has shape \(5,\)"),
        ({"head": head_of(eps=float("nan"))}, ValueError, "eps is nan"),
        ({"head": head_of(norm_eps=0.0)}, ValueError, "norm_eps is 0"),
    ],
)  # fmt: skip
def test_bad_arguments(change, error, message):
    (*update, pre), options = drawn(3, own="head" not in change, norm=0, bias=0)
    with pytest.raises(error, match=message):
        hc_last(*update, **{"pre": pre, **options, **change})


def on_gpu(given):
    return tree_map_only(torch.Tensor, torch.Tensor.cuda, given)


@pytest.mark.gpu
@pytest.mark.parametrize(("norm", "order"), [(0, "io"), (1, "oi")])
@pytest.mark.parametrize("c", [67, 4096, 5120, 7168])
def test_a_head_on_a_gpu(c, norm, order):
    (*update, _), options = drawn(300, own=0, norm=norm, bias=norm, c=c)
    options["comb_order"], head = order, head_of(c=c, weighted=bool(norm))
    update, options, head = on_gpu((update, options, head))
    head = head._replace(fn=head.fn * c**-0.5)
    y, expected = hc_last(*update, head=head, **options), composed(*update, head=head, **options)
    for k in (1, 5, 64, 150):
        few = hc_last(*[t[:k] for t in update], head=head, **options)
        assert torch.equal(few, y[:k])
    # sums in another order: a neighbour here and there, of the collapse and of its norm
    torch.testing.assert_close(y, expected, rtol=2.0**-7 * (1 + norm), atol=2.0**-14)
    assert (y != expected).float().mean() < 0.01
    bias, *of_norm = (options[name] for name in ("bias", "y_norm_weight", "y_norm_eps"))
    exact = in_float64(hc_post(*update, bias, comb_order=order), head, *of_norm)
    error = (y.double().cpu() - exact).abs()
    # the collapse is rounded, which changes its mean square too, and so is what is normalised
    assert (error <= 2.0**-8 * (1 + 2 * norm) * exact.abs() + 2e-5).all()
    assert torch.equal(hc_last(*update, head=head, **options, out=torch.empty_like(y)), y)


@pytest.mark.gpu
@each_form
@pytest.mark.parametrize("c", [67, 4096, 5120, 7168])
def test_on_a_gpu(c, own, norm, bias, order):
    given, options = drawn(37, own=own, norm=norm, bias=bias, c=c)
    options["comb_order"] = order
    given, options = on_gpu((given, options))
    y, expected = hc_last(*given, **options), composed(*given, **options)
    alone = hc_last(*[t if t is None else t[5:6] for t in given], **options)
    assert torch.equal(alone, y[5:6])
    if norm:
        # squares in another order: a neighbour here and there
        torch.testing.assert_close(y, expected, rtol=2.0**-7, atol=0.0)
        assert (y != expected).float().mean() < 0.01
    else:
        assert torch.equal(y, expected)
