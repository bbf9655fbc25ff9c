"""From tensors to the launches of hc_boundary's forward: four."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.hc_mixes import launch as mixes_launch
from helion_sinkhorn.ops.hc_site.boundary.space import chunk_of, forward_default, forward_space
from helion_sinkhorn.ops.hc_site.constants import Constants
from helion_sinkhorn.ops.hc_site.launch import Tensors, call_for, coefficients, tuned_keys
from helion_sinkhorn.ops.hc_site.space import SiteCall
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.serving import Served, launch_kept, layout_key, run_and_keep, serve
from helion_sinkhorn.runtime.views import flattened, parameter, placed

FORWARD = "hc_boundary_forward"
BODIES = "helion_sinkhorn.ops.hc_site.boundary.kernels"
KERNELS = {
    FORWARD: Kernel(
        FORWARD, f"{BODIES}:{FORWARD}", SiteCall, forward_default, forward_space,
        traits=frozenset({"splits"}),
    ),
}  # fmt: skip


def forward(
    f: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    bias: torch.Tensor | None,
    weights: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    *constants: object,
    choice: Choice | None = None,
) -> Tensors:
    """(streams, y, pre, post, comb, mixes, norms); the contract is torch_op's, the choice the kernel's."""
    given = Constants(*constants)
    n, columns = x.shape[-2:]
    call = call_for(n, columns, x.dtype, given.precision)
    split = mixes_launch.split(parameter(fn), call.mixes)
    rows = flattened(f, 1), flattened(x, 2), flattened(post, 1), flattened(comb, 2)
    bias = None if bias is None else placed(bias)
    collapse = flattened(weights, 1)
    streams, y, *made = one_pass(*rows, bias, collapse, split, call, given.comb_order, choice)
    found = coefficients(*made, scale, base, n, call.mixes, given)
    return tuple(t.view(*x.shape[:-2], *t.shape[1:]) for t in (streams, y, *found))


def one_pass(
    f: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    bias: torch.Tensor | None,
    weights: torch.Tensor,
    split: torch.Tensor,
    call: SiteCall,
    comb_order: str,
    choice: Choice | None = None,
) -> Tensors:
    """(streams (T, n, C), y (T, C), partials (T, splits, M), squares (T, splits))."""
    tokens, n, columns = x.shape
    chunk, mixes = chunk_of(call), call.mixes
    splits = -(-columns // chunk)
    streams, y = torch.empty_like(x), x.new_empty((tokens, columns))
    partials = x.new_empty((tokens, splits, mixes.m), dtype=torch.float32)
    squares = x.new_empty((tokens, splits), dtype=torch.float32)
    whole = split.view(mixes.m, mixes.parts, n, columns)
    tensors = f, x, post, comb, bias, weights, whole, streams, y, partials, squares
    key = FORWARD, layout_key(*tensors), call.precision, comb_order, choice
    if launch_kept(key, *tensors):
        return streams, y, partials, squares

    def launch(served: Served) -> None:
        own = (
            mixes.m, n, columns, splits, chunk, mixes.block_m, mixes.x_parts, mixes.parts,
            comb_order == "oi", served.reciprocal, served.interpret,
        )  # fmt: skip
        run_and_keep(served.kernel, tensors, own, tensors, key)

    serve(KERNELS, FORWARD, call, tokens, x, launch, tuned_keys, choice)
    return streams, y, partials, squares
