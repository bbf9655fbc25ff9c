"""From tensors to the launch that ends hc_site and hc_boundary with a norm for few tokens."""

from __future__ import annotations

import math
from typing import Any

import torch

from helion_sinkhorn.ops.mhc.mixes.launch import Partials
from helion_sinkhorn.ops.mhc.options import SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.out import NONE, Out, room
from helion_sinkhorn.ops.mhc.pre.quantized.launch import beside, form_in_row
from helion_sinkhorn.ops.mhc.pre.quantized.layouts import Kind
from helion_sinkhorn.ops.mhc.site.finish.space import FEW, MOST_STREAMS, default, space
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.ops.mhc.split import launch as split_launch
from helion_sinkhorn.ops.mhc.split.views import At, logits_view, rooms, written_view
from helion_sinkhorn.ops.sinkhorn.views import thread_of
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import Chosen, device_of, launch, layout_key
from helion_sinkhorn.runtime.views import flattened_streams, parameter, placed
from helion_sinkhorn.runtime.wanted import Some

FINISH = "hc_boundary_finish"
Tensors = tuple[torch.Tensor, ...]


def facts(
    chosen: Chosen, call: SiteCall, neighbours: int, splits: int, options: SiteOptions, kind: Kind | None
) -> tuple[Any, ...]:
    of = split_launch.call_for(call.n, options.sinkhorn_iters, options.eps, torch.float32)
    threads = dict(chosen.choice.config)["num_warps"] * chosen.device.warp_size
    return (
        neighbours, splits, call.mixes.columns, options.norm_eps, options.eps_outside,
        call.n, options.sinkhorn_iters, options.eps, of.deepseek, options.post_mult, options.pre_eps,
        options.post_eps, options.comb_order == "oi", threads, call.columns, options.y_norm_eps,
        chosen.reciprocal, *split_launch.shared(of, options.eps, chosen.choice),
        form_in_row(chosen, call.columns, kind),
    )  # fmt: skip


KERNEL = Kernel(
    FINISH, f"helion_sinkhorn.ops.mhc.site.finish.kernels:{FINISH}", SiteCall, default, space, facts,
    traits=frozenset({"norms", "overlaps"}), numbers=1,
)  # fmt: skip


def is_short(streams: torch.Tensor) -> bool:
    """Whether one launch is shorter than three, and has their bits: LLVM fuses sums anew on AMD."""
    *lead, n, _ = streams.shape
    return math.prod(lead) <= FEW and n <= MOST_STREAMS and device_of(streams).vendor == "nvidia"


def run(
    partials: Partials,
    site: SiteParameters,
    streams: torch.Tensor,
    y: Some,
    call: SiteCall,
    options: SiteOptions,
    out: Out = NONE,
    choice: Choice | None = None,
) -> Tensors:
    """(u, pre, post, comb, mixes, norms): u (..., C) is the norm of y, over y, or without y that of the
    collapse of the streams (..., n, C).  u is rounded into out.quantized, if it is given.
    """
    products, squares = partials
    tokens, splits, m = products.shape
    n, lead, x = call.n, streams.shape[:-2], None
    if y is None:
        x, y = flattened_streams(streams), room(out.y, streams, (*lead, call.columns), streams.dtype)
    mixes, norms = products.new_empty((tokens, m)), products.new_empty((tokens, 2))
    scale, base, weight = parameter(site.scale), parameter(site.base), placed(site.y_norm_weight)
    made = rooms(products, lead, n, torch.float32, out[1:4])
    rows, (kind, neighbours, operands) = y.view(tokens, -1), beside(y, out.quantized)
    tensors = (
        products, squares, mixes, norms, mixes, At(mixes, 2 * n), scale, base, At(base, 2 * n), *made,
        None if x is None else products, x, rows, weight, *operands,
    )  # fmt: skip

    def views(chosen: Chosen) -> tuple[Some, ...]:
        thread = thread_of(chosen.choice)
        pre, post, comb = made
        return (
            products, squares, mixes, norms, mixes.view(tokens, n + 2, n),
            logits_view(mixes[:, 2 * n :], n, thread), scale, base.view(n + 2, n),
            logits_view(base[2 * n :], n, thread, tokens), pre.view(tokens, n), post.view(tokens, n),
            written_view(comb.view(tokens, n * n), n, any(thread)),
            None if x is None else products[:, :, :n], x, rows, weight, *operands,
        )  # fmt: skip

    launch(
        KERNEL, call, tensors, neighbours, splits, options, kind, batch=tokens, choice=choice, views=views,
        # all others are contiguous, so nothing else decides their layout
        layouts=(tokens, n, weight.dtype, layout_key(y, x)),
    )  # fmt: skip
    return y, *made, *(t.view(*lead, t.size(1)) for t in (mixes, norms))
