"""The kernels of hc_last by themselves, and the error of what is normalised."""

from __future__ import annotations

import torch

from helion_sinkhorn.lab.draws import noise
from helion_sinkhorn.lab.evidence import Tensors
from helion_sinkhorn.lab.mixes import budget as of_mixes
from helion_sinkhorn.lab.mixes.workloads import MixesWorkload
from helion_sinkhorn.lab.pre.normed import budget as of_normed
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.ops.mhc.mixes.launch import Partials, reduce
from helion_sinkhorn.ops.mhc.options import SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.post import launch as post_launch
from helion_sinkhorn.ops.mhc.site.boundary.head import launch as head
from helion_sinkhorn.ops.mhc.site.boundary.head.space import projection_of
from helion_sinkhorn.ops.mhc.site.boundary.last import launch as last
from helion_sinkhorn.ops.mhc.site.launch import coefficients
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.runtime.kernel import Choice
from helion_sinkhorn.runtime.updates import Update

JUDGED_TOKENS = 16


def of_last(call: SiteCall, batch: int, device: str) -> Tensors:
    """The sublayer's output, the streams, both coefficients, the weights of the collapse and of the norm."""
    f, x = noise(device, call.dtype, (batch, call.columns), (batch, call.n, call.columns))
    shapes = (batch, call.n), (batch, call.n, call.n), (batch, call.n), (call.columns,)
    return f, x, *noise(device, "float32", *shapes)


def run_last(call: SiteCall, choice: Choice, f, x, post, comb, weights, norm) -> torch.Tensor:
    given = Update(f, x, post, comb), weights, norm, SiteOptions().y_norm_eps, "io"
    return last.forward(*given, choice)


def last_error(call: SiteCall, choice: Choice, device: str) -> float:
    """The error of what is normalised, by streams with the bits that hc_post's kernel gives them."""
    operands = of_last(call, JUDGED_TOKENS, device)
    u = run_last(call, choice, *operands)
    *update, weights, norm = operands
    streams = post_launch.forward(Update(*update), "io")
    return norm_error(u, streams, weights, norm)


def of_head_sums(call: SiteCall, batch: int, device: str) -> Tensors:
    """What `of_last` has of the update, and a projection."""
    return *of_last(call, batch, device)[:4], *noise(device, "float32", (call.n, call.n * call.columns))


def run_head_sums(call: SiteCall, choice: Choice, f, x, post, comb, fn) -> Tensors:
    return head.sums(Update(f, x, post, comb), fn, call, "io", {choice.kernel: choice})


def head_sums_error(call: SiteCall, choice: Choice, device: str) -> float:
    """The error of the mixes that the sums make, by streams that hc_post's kernel makes."""
    *update, fn = of_head_sums(call, JUDGED_TOKENS, device)
    made, eps = run_head_sums(call, choice, *update, fn), SiteOptions().norm_eps
    mixes, _ = reduce(made, projection_of(call), eps, False)
    streams = post_launch.forward(Update(*update), "io")
    workload = MixesWorkload("head", 1, frozenset(), "", call.n, call.columns, call.n, norm_eps=eps)
    given = (t[None].cpu() for t in (streams, torch.zeros_like(mixes), fn))
    limit = of_mixes.evaluated(workload, *given)["mixes"]
    return worst(mixes[None], limit.value, limit.budget)


def of_head(call: SiteCall, batch: int, device: str) -> Tensors:
    """What `of_last` has, but sums, scale and base for the weights of the collapse."""
    *update, _, norm = of_last(call, batch, device)
    splits = head.splits_of(call)
    shapes = (batch, splits, call.n), (batch, splits), (1,), (call.n,)
    products, squares, scale, base = noise(device, "float32", *shapes)
    return *update, products, squares.abs(), scale, base, norm


def run_head(call: SiteCall, choice: Choice, *operands: torch.Tensor) -> torch.Tensor:
    f, x, post, comb, products, squares, *parameters = operands
    options, y = SiteOptions(), torch.empty_like(f)
    eps = options.norm_eps, options.eps, options.y_norm_eps
    given = Update(f, x, post, comb), Partials(products, squares), parameters, y, call, "io", *eps
    head.collapsed(*given, choices={choice.kernel: choice})
    return y


def head_error(call: SiteCall, choice: Choice, device: str) -> float:
    """The error of what is normalised, by the weights that hc_site makes of these sums."""
    operands = of_head(call, JUDGED_TOKENS, device)
    u = run_head(call, choice, *operands)
    *update, products, squares, scale, base, norm = operands
    rows = call.n * (call.n + 1)  # those of the other coefficients
    made = Partials(torch.nn.functional.pad(products, (0, rows)), squares)
    site = SiteParameters(None, scale.expand(3).contiguous(), torch.nn.functional.pad(base, (0, rows)))
    weights, *_ = coefficients(made, squares.shape[:1], site, call.n, call.mixes, SiteOptions().checked())
    return norm_error(u, post_launch.forward(Update(*update), "io"), weights, norm)


def norm_error(*given: torch.Tensor) -> float:
    """The error of the normalised collapse that is given first; of streams, their weights and the norm's."""
    u, streams, weights, norm = (t[None].cpu() for t in given)
    given = streams, weights, torch.zeros_like(u), norm, SiteOptions().y_norm_eps
    return worst(u, of_normed.exact(*given)["u"], of_normed.error_budget(*given)["u"])
