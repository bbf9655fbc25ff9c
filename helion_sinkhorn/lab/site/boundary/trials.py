"""The kernel of hc_last by itself, and the error of what is normalised."""

from __future__ import annotations

import torch

from helion_sinkhorn.lab.draws import noise
from helion_sinkhorn.lab.evidence import Tensors
from helion_sinkhorn.lab.pre.normed import budget as of_normed
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.ops.mhc.options import SiteOptions
from helion_sinkhorn.ops.mhc.post import launch as post_launch
from helion_sinkhorn.ops.mhc.site.boundary.last import launch as last
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


def norm_error(*given: torch.Tensor) -> float:
    """The error of the normalised collapse that is given first; of streams, their weights and the norm's."""
    u, streams, weights, norm = (t[None].cpu() for t in given)
    given = streams, weights, torch.zeros_like(u), norm, SiteOptions().y_norm_eps
    return worst(u, of_normed.exact(*given)["u"], of_normed.error_budget(*given)["u"])
