"""The largest errors of hc_boundary's backward, for given mixes and their upstream gradient.

The gradient of the new streams,
    G_o = dX'_o + weights_o dy + (r dmixes fn)_o + k <dmixes, mixes> X'_o,
has the errors of dx in hc_site's budget.  Each of its entries enters the results of hc_post's backward with
an independent error, but r and <dmixes, mixes> belong to a token, and their errors add up over its columns.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.lab.mixes import budget as of_mixes
from helion_sinkhorn.lab.mixes.budget import Exact
from helion_sinkhorn.lab.mixes.workloads import MixesWorkload
from helion_sinkhorn.lab.post import budget as of_post
from helion_sinkhorn.lab.pre import budget as of_pre
from helion_sinkhorn.lab.rounding import SIGMAS, UNIT, chain, half_ulp
from helion_sinkhorn.runtime.updates import Update

RESULTS = ("df", "dx", "dpost", "dcomb", "dfn", "dweights")
Limits = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""The value in float64 and the largest error of each result."""


def evaluated(workload: MixesWorkload, update: Update, dstreams, dy, dmixes, streams, weights, fn) -> Limits:
    """RESULTS of (T, ...) tokens, each input of the dtype in which it is given, and fn (M, n C)."""
    given = update[:4]
    found = of_mixes.evaluated(workload, streams.flatten(1)[None], dmixes[None], fn[None])
    projection, shape = found["dx"], streams.shape
    grad, variance = upstream(dstreams, dy, streams, weights, projection)
    value = of_post.exact(*(t[None] for t in given), grad[None])
    own = of_post.deviation(*(t[None] for t in given), grad[None])
    (f, x, post, comb), wide = (t.double() for t in given), streams.double()
    of_norm, of_product = parts_of_projection(workload, found, dmixes.double(), wide, projection, shape)
    weighted = {
        "df": (post.square().unsqueeze(1) @ variance).squeeze(1),
        "dx": comb.square() @ variance,
        "dpost": (variance @ f.square().unsqueeze(2)).squeeze(2)
        + sum((t @ f.unsqueeze(2)).squeeze(2).square() for t in (of_norm, of_product)),
        "dcomb": x.square() @ variance.mT + sum((x @ t.mT).square() for t in (of_norm, of_product)),
    }
    dtypes = {"df": given[0].dtype, "dx": given[1].dtype, "dpost": post.dtype, "dcomb": comb.dtype}
    limits = {
        name: (value[name][0], budget(value[name][0], own[name][0].square() + t, dtypes[name]))
        for name, t in weighted.items()
    }
    collapse = streams, weights, dy
    limits["dfn"] = found["dfn"].value[0], found["dfn"].budget[0]
    limits["dweights"] = of_pre.exact(*collapse)["dpre"], of_pre.error_budget(*collapse)["dpre"]
    return limits


def budget(value: torch.Tensor, variance: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The largest error of a result that is rounded to this dtype."""
    narrow = dtype if dtype in (torch.bfloat16, torch.float16) else torch.float32
    return SIGMAS * variance.sqrt() + half_ulp(value, narrow)


def upstream(dstreams, dy, streams, weights, projection: Exact) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of the new streams (T, n, C) and the variance of its error in float32."""
    weighted = weights.double().unsqueeze(2) * dy.double().unsqueeze(1)
    product = projection.value.view(streams.shape)
    terms = dstreams.double().square() + weighted.square() + product.square()
    variance = projection.deviation.view(streams.shape).square() + (UNIT * chain(4)) ** 2 * terms
    return dstreams.double() + weighted + product, variance


def parts_of_projection(workload, found, dmixes, streams, projection, shape):
    """Errors (T, n, C) that all columns of a token share: of r and k <dmixes, mixes>, and of r alone."""
    size = shape[1] * shape[2]
    mixes, of_r = found["mixes"], of_mixes.variance_of_norm(size)
    mean = streams.flatten(1).square().mean(1)
    k = -1 / (mean + workload.norm_eps) / size
    along = (dmixes * mixes.value[0]).sum(1)
    off = (dmixes * mixes.deviation[0]).square().sum(1) + 5 * of_r * along.square()
    of_norm = (k * off.sqrt())[:, None, None] * streams
    product = projection.value.view(shape) - (k * along)[:, None, None] * streams
    return of_norm, of_r**0.5 * product
