"""The largest errors of hc_split_sinkhorn: the equations with a rounding at each step.

`model` is the specification's mathematics in float64, Sinkhorn's part in its scaling form, with every
rounding of a float32 implementation replaced by a random relative error of the size of its bound.  The budget
is five standard deviations of what comes out, and half a unit in the last place of a narrow result.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.functional import logsigmoid

from helion_sinkhorn.lab.rounding import SIGMAS, Rounding, half_ulp, tree, variances
from helion_sinkhorn.lab.sinkhorn.budget import SMALLEST_NORMAL, scaling_form
from helion_sinkhorn.lab.split.workloads import HcWorkload
from helion_sinkhorn.ops.mhc.split.reference import mixes_of
from helion_sinkhorn.ops.sinkhorn.reference import sinkhorn

Named = Mapping[str, torch.Tensor]
RESULTS = ("pre", "post", "comb", "dmixes", "dbase", "dscale")


def exact(workload: HcWorkload, mixes, dpre, dpost, dcomb, scale, base) -> dict[str, torch.Tensor]:
    """The results in float64: the specification's equations and autograd.

    Gates are exp(logsigmoid(a)), whose derivative does not cancel: that of sigmoid(40) is 4e-18, and
    1 - sigmoid(40) is 0 in float64.

    Args:
        mixes: (K, G, n^2 + 2n), K elements of G tokens, or partial sums as the workload makes them; the
            upstream gradients likewise.
        scale, base: (K, 3) and (K, n^2 + 2n), those of each element.

    Returns:
        "pre", "post", "comb" token by token, "dmixes" as the mixes; "dbase" (K, 1, n^2 + 2n) and "dscale" (K,
        1, 3).
    """
    leaves = [t.detach().double().requires_grad_() for t in (mixes, scale, base)]
    n, n_iters, eps, post_mult, pre_eps, post_eps, order = workload.arguments
    wide, s, b = leaves[0], repeated(leaves[1], n).unsqueeze(-2), leaves[2].unsqueeze(-2)
    if workload.splits:
        partials, reduce = workload.given(wide)
        wide = mixes_of(partials, reduce["reduce"])
    pre, post, comb = (wide * s + b).split((n, n, n * n), -1)
    comb = sinkhorn(comb.unflatten(-1, (n, n)), n_iters, eps=eps)
    out = [
        logsigmoid(pre).exp() + pre_eps,
        post_mult * logsigmoid(post).exp() + post_eps,
        comb if order == "io" else comb.mT,
    ]
    grads = torch.autograd.grad(out, leaves, [t.double() for t in (dpre, dpost, dcomb)])
    values = dict(zip(RESULTS, [t.detach() for t in out], strict=False))
    return values | {"dmixes": grads[0], "dbase": grads[2].unsqueeze(1), "dscale": grads[1].unsqueeze(1)}


def repeated(scale: torch.Tensor, n: int) -> torch.Tensor:
    """(K, 3) as (K, n^2 + 2n), a factor for each column of the mixes."""
    sizes = (n, n, n * n)
    return torch.cat([scale[:, k : k + 1].expand(-1, size) for k, size in enumerate(sizes)], -1)


def _gate(a: torch.Tensor, r: Rounding) -> tuple[torch.Tensor, torch.Tensor]:
    """(sigmoid(a), sigmoid(-a)) from exp(-|a|)."""
    e = r(r(-a.abs(), r.ARGUMENT).exp(), r.EXP)
    near_one = r(1.0 / r(1.0 + e), r.RECIPROCAL)
    near_zero = r(e * near_one)
    return torch.where(a >= 0, near_one, near_zero), torch.where(a >= 0, near_zero, near_one)


def model(
    workload: HcWorkload, mixes, dpre, dpost, dcomb, scale, base, r: Rounding
) -> dict[str, torch.Tensor]:
    """The results of `exact` with `r` at each point where float32 rounds; all inputs in float64."""
    n, n_iters, eps, post_mult, pre_eps, post_eps, order = workload.arguments
    r.next_iteration()
    if workload.splits:
        mixes, factor, slope = normed(workload, mixes, r)
    s, base = repeated(scale, n).unsqueeze(-2), base.unsqueeze(-2)
    a = r(r(mixes * s) + base)
    up, down = _gate(a[..., : 2 * n], r)
    pre = r(up[..., :n] + pre_eps)
    post = r(r(post_mult * up[..., n:]) + post_eps)
    da_gates = r(r(torch.cat([dpre, r(post_mult * dpost)], -1) * up) * down)
    logits = a[..., 2 * n :].unflatten(-1, (n, n))
    transposed = order == "oi"
    upstream = dcomb.mT if transposed else dcomb
    comb, da_comb = scaling_form(logits, upstream, n_iters, eps, "deepseek", "rows", r)
    da = torch.cat([da_gates, da_comb.flatten(-2)], -1)
    products = r(da * mixes).split((n, n, n * n), -1)
    dmixes = r(da * s)
    if workload.splits:
        dsquares = r(0.5 * slope * r.sum(r(dmixes * mixes), -1))
        dmixes = torch.cat([r(factor * dmixes), dsquares], -1)
        dmixes = dmixes.unsqueeze(1).expand(-1, workload.splits, -1, -1)
    return {
        "pre": pre, "post": post, "comb": comb.mT if transposed else comb, "dmixes": dmixes,
        "dbase": added(da, r).unsqueeze(-2),
        "dscale": torch.cat([added(p.flatten(-2).unsqueeze(-1), r) for p in products], -1).unsqueeze(-2),
    }  # fmt: skip


SQUARE_ROOT = 2.0
"""sqrt.approx: 2^-23."""


def normed(
    workload: HcWorkload, given: torch.Tensor, r: Rounding
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(mixes, r, k) of partial sums, the factors (K, G, 1): that of the norm and that of its gradient."""
    partials, squares = workload.parts(given)
    total, mean = r.sum(partials, 0)[0], r(r.sum(squares, 0)[0] / workload.size).unsqueeze(-1)
    if workload.eps_outside:
        root = r(mean.sqrt(), SQUARE_ROOT)
        factor = r(1.0 / r(root + workload.norm_eps), r.RECIPROCAL)
        slope = r(factor * r(1.0 / root, r.RECIPROCAL)) / workload.size
    else:
        root = r(r(mean + workload.norm_eps).sqrt(), SQUARE_ROOT)
        factor = r(1.0 / root, r.RECIPROCAL)
        slope = r(factor * factor) / workload.size
    return r(total * factor), factor, -r(slope)


def added(terms: torch.Tensor, r: Rounding) -> torch.Tensor:
    """The sum over the tokens, by a tree or a loop over tiles."""
    return r(terms, tree(terms.size(-2))).sum(-2)


def error_budget(workload: HcWorkload, *inputs: torch.Tensor, seed: int = 0) -> dict[str, torch.Tensor]:
    """The largest error that an implementation may have on these inputs, entry by entry, for each result.

    For pre, post, comb and the gates' columns of dmixes it follows from an entry's own relative deviation,
    but at least the mean of its token.  For comb's columns of dmixes and the sums it follows from the largest
    deviation of the token or sum, since their entries cancel.
    """
    truth = exact(workload, *inputs)
    wide = [t.detach().double() for t in inputs]
    variance = variances(truth, lambda error: model(workload, *wide, error), wide[0].device, seed)
    deviation = {name: t.sqrt() for name, t in variance.items()}
    below, upstream = SMALLEST_NORMAL, max(x.abs().max().item() for x in wide[1:4])
    budgets = {}
    for name, d in shared(workload, truth, deviation).items():
        if name == "dmixes" and workload.splits:
            columns, t = workload.columns, truth[name]
            of_squares = _of_squares(workload, wide[0], t, deviation[name][..., columns:])
            d = torch.cat([d[..., :columns], of_squares], -1)
        dtype = workload.dtype if name == "dmixes" else torch.float32
        budgets[name] = SIGMAS * d + below * max(1.0, upstream) + half_ulp(truth[name], dtype)
    return budgets


def shared(workload: HcWorkload, truth: Named, deviation: Named) -> dict[str, torch.Tensor]:
    """Deviations of RESULTS where entries that round alike have one, as `error_budget` says."""
    n, columns = workload.n, workload.columns
    deviations = {}
    for name in RESULTS:
        d, t = deviation[name], truth[name]
        if name in ("pre", "post"):
            d = _own(d, t)
        elif name == "comb":
            d = _own(d.flatten(-2), t.flatten(-2)).unflatten(-1, (n, n))
        elif name == "dmixes":
            own = zip(d[..., : 2 * n].split(n, -1), t[..., : 2 * n].split(n, -1), strict=True)
            rest = d[..., columns:]
            d = torch.cat([*(_own(*gates) for gates in own), _largest(d[..., 2 * n : columns]), rest], -1)
        elif name == "dbase":
            d = torch.cat([_largest(x) for x in d.split((n, n, n * n), -1)], -1)
        deviations[name] = d
    return deviations


def _own(deviation: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Entry by entry, but at least the mean relative deviation of the last axis: 16 runs know one to a
    fifth."""
    relative = torch.where(value != 0, (deviation / value).square(), 0.0)
    return value.abs() * torch.maximum(relative, relative.mean(-1, keepdim=True)).sqrt()


def _of_squares(workload: HcWorkload, given, dmixes, deviation: torch.Tensor) -> torch.Tensor:
    """The budget of the squares' gradient, a sum of columns that cancel: `_own` of the sum of their sizes."""
    mixes, factor, slope = normed(workload, given, Rounding(0, unit=0.0))
    terms = (dmixes[:, 0, :, :-1] / factor * mixes).abs().sum(-1, keepdim=True)
    size = (0.5 * slope * terms).mT.unsqueeze(1)
    return _own(deviation.mT, size.expand_as(deviation.mT)).mT


def _largest(deviation: torch.Tensor) -> torch.Tensor:
    return deviation.amax(-1, keepdim=True).expand_as(deviation)
