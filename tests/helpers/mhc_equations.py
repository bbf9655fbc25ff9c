"""The mHC residual path written out in float64, and how far float32 arithmetic may take it from there.

Every step goes through `at`, which does nothing or errs as float32 does: forward, and backward in the
gradient that autograd sends through it.  What the results then deviate by is what they may be off by; no
implementation is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from autograd_calls import values_and_gradients
from torch.func import functional_call
from torch.nn.functional import logsigmoid

from helion_sinkhorn.ops.mhc.options import SiteOptions

UNIT = 2.0**-24
SAMPLES, MARGIN = 12, 2.0
"""The number of evaluations of the model, and the factor on their largest error that is allowed."""

At = Callable[..., torch.Tensor]


def exactly(x: torch.Tensor, terms: int = 0) -> torch.Tensor:
    return x


class _Err(torch.autograd.Function):
    """x with a relative error of up to `size` in each entry, and so has the gradient."""

    @staticmethod
    def forward(ctx, x, size, generator):
        ctx.size, ctx.generator = size, generator
        return x * (1 + size * _signs(x, generator))

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 + ctx.size * _signs(grad, ctx.generator)), None, None


def _signs(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return 2.0 * torch.randint(0, 2, x.shape, generator=generator).to(x.dtype) - 1


def erring(seed: int) -> At:
    """float32: a product, a sum or a function errs by up to 2 units, a term of a sum of k by 2 sqrt(k) more.

    2 units are two roundings, or an exponential; at most 2 sqrt(k) numbers are added in a chain, in tiles.
    """
    generator = torch.Generator().manual_seed(seed)
    return lambda x, terms=0: _Err.apply(x, UNIT * (2 + 2 * math.sqrt(terms)), generator)


def prenorm(x, fn, at: At = exactly):
    """Projection and mean square of (..., n, C)."""
    flat = at(x.flatten(-2))
    z = at(flat.unsqueeze(-2) * fn, flat.size(-1)).sum(-1)
    return z, at(flat.square(), flat.size(-1)).mean(-1)


def mixes(x, fn, norm_eps=1e-6, eps_outside=False, at: At = exactly):
    """Projection and norm of (..., n, C)."""
    z, q = prenorm(x, fn, at)
    q = q.unsqueeze(-1)
    r = 1 / (q.sqrt() + norm_eps) if eps_outside else (q + norm_eps).rsqrt()
    return at(at(z) * at(r))


def coefficients(x, fn, scale, base, at: At = exactly, **options):
    """(pre, post, comb) of the streams; gates by logsigmoid, whose derivative does not cancel.

    It takes the options of `hc_site`.
    """
    of, n = SiteOptions(**options), x.size(-2)
    eps = of.eps
    made = mixes(x, fn, of.norm_eps, of.eps_outside, at)
    s = torch.cat([scale[k].expand(size) for k, size in enumerate((n, n, n * n))])
    a = at(at(made * s) + base)
    pre = at(at(logsigmoid(a[..., :n]).exp()) + eps)
    post = at(of.post_mult * at(logsigmoid(a[..., n : 2 * n]).exp()))
    logits = at(a[..., 2 * n :].unflatten(-1, (n, n)))
    if not of.sinkhorn_iters:
        return pre, post, logits
    if of.form == "log":
        for _ in range(of.sinkhorn_iters):
            for axis in (-1, -2):
                logits = at(logits - at(logits.logsumexp(axis, keepdim=True), n))
        return pre, post, at(logits.exp())
    p = at(logits.softmax(-1) + eps)
    p = at(p / at(at(p, n).sum(-2, keepdim=True) + eps))
    for _ in range(of.sinkhorn_iters - 1):
        for axis in (-1, -2):
            p = at(p / at(at(p, n).sum(axis, keepdim=True) + eps))
    return pre, post, p


def collapse(x, pre, at: At = exactly):
    return at(at(pre.unsqueeze(-1) * x, x.size(-2)).sum(-2))


def expand(f, x, post, comb, at: At = exactly):
    """New streams; the sum is over the first index of comb."""
    n = x.size(-2)
    terms = at(comb.unsqueeze(-1) * x.unsqueeze(-2), n + 1)
    return at(terms.sum(-3) + at(post.unsqueeze(-1) * f.unsqueeze(-2), n + 1))


def connection(x, fn, scale, base, at: At = exactly, **options):
    """The results of HyperConnection: (post, comb, collapsed)."""
    pre, post, comb = coefficients(x, fn, scale, base, at=at, **options)
    return post, comb, collapse(x, pre, at)


def head(x, fn, scale, base, eps=1e-6, norm_eps=1e-6, at: At = exactly):
    """The result of HyperHead, in a tuple."""
    a = at(at(mixes(x, fn, norm_eps, at=at) * scale) + base)
    return (collapse(x, at(at(logsigmoid(a).exp()) + eps), at),)


def called(module: torch.nn.Module) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A module as a function of the streams and its parameters, in the order of the equations."""
    names = list(module.state_dict())

    def call(x, fn, scale, base):
        results = functional_call(module, dict(zip(names, (fn, base, scale), strict=True)), (x,))
        return results if isinstance(results, tuple) else (results,)

    return call


def truth_and_budget(function, tensors, upstream, **options):
    """Each result and gradient in float64, and the largest error that float32 may leave, the same for all of
    its entries."""
    wide = [t.detach().double() for t in tensors]
    upstream = [None if g is None else g.double() for g in upstream]
    truth = values_and_gradients(function, wide, upstream, **options)
    largest = [0.0] * len(truth)
    for seed in range(SAMPLES):
        rough = values_and_gradients(function, wide, upstream, at=erring(seed), **options)
        errors = [float((a - b).abs().max()) if a.numel() else 0.0 for a, b in zip(rough, truth, strict=True)]
        largest = list(map(max, largest, errors))
    return truth, [MARGIN * error for error in largest]


def assert_within(results, truth, budget, rounded=0) -> None:
    """Errors within the budget, and half a unit in the last place of a narrow result.

    A gradient of streams is added up from `rounded` results of operators, each rounded to its dtype, and the
    additions round again: the largest entry's half unit for each.
    """
    for k, (y, t, limit) in enumerate(zip(results, truth, budget, strict=True)):
        assert y.shape == t.shape
        assert y.isfinite().all(), k
        if y.dtype in (torch.bfloat16, torch.float16):
            half = torch.finfo(y.dtype).eps / 2 * t.abs()
            limit = limit + (half if not rounded else 2 * rounded * half.max())
        error = (y.double() - t).abs()
        assert (error <= limit).all(), f"{k}: {float(error.max()):.3g}, largest {float(t.abs().max()):.3g}"


def assert_equations(function, equation, tensors, upstream, rounded=0, **options) -> list[torch.Tensor]:
    """Values and gradients of a function, within what float32 may leave of its equations."""
    truth, budget = truth_and_budget(equation, tensors, upstream, **options)
    results, count = values_and_gradients(function, tensors, upstream), len(upstream)
    assert_within(results[:count], truth[:count], budget[:count])
    assert_within(results[count:], truth[count:], budget[count:], rounded)
    return results
