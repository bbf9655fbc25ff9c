"""From tensors to launches of the hc_mixes kernels: views, partitions, the choice of configs."""

from __future__ import annotations

import functools

import torch

from helion_sinkhorn.ops.hc_mixes.space import (
    CHUNK,
    MixesCall,
    backward_default,
    backward_space,
    partials_default,
    partials_space,
    reduce_default,
    reduce_space,
    split_default,
    split_space,
)
from helion_sinkhorn.runtime import serving
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.serving import Asked, Served, launch_kept, layout_key, run_and_keep, serve
from helion_sinkhorn.runtime.views import flattened, parameter, placed

SPLIT, PARTIALS, REDUCE = "hc_mixes_split", "hc_mixes_partials", "hc_mixes_reduce"
UPSTREAM, BACKWARD = "hc_mixes_upstream", "hc_mixes_backward"
BODIES = "helion_sinkhorn.ops.hc_mixes.kernels"
KERNELS = {
    name: Kernel(name, f"{BODIES}:{name}", MixesCall, default, space, traits=frozenset({trait}), size=size)
    for name, default, space, trait, size in (
        (SPLIT, split_default, split_space, "splits", lambda call: call.m),
        (PARTIALS, partials_default, partials_space, "splits", None),
        (REDUCE, reduce_default, reduce_space, "norms", None),
        (UPSTREAM, reduce_default, reduce_space, "splits", None),
        (BACKWARD, backward_default, backward_space, "splits", None),
    )
}
SHARE = 64
"""Tokens of a share are a multiple of it, so that no compiled program depends on how many they are."""


@functools.lru_cache(maxsize=4096)
def call_for(m: int, columns: int, dtype: torch.dtype, precision: str) -> MixesCall:
    """What the configs of a call are chosen for; one row goes with another of zeros (`several`)."""
    return MixesCall(str(dtype)[6:], max(2, m), columns, precision)


def split(fn: torch.Tensor, call: MixesCall, choice: Choice | None = None) -> torch.Tensor:
    """The bfloat16 parts (M, parts, K) of fn (M, K)."""
    m, columns = fn.shape
    made = fn.new_empty((m, call.parts, columns), dtype=torch.bfloat16)
    tensors = fn, made
    key = SPLIT, layout_key(*tensors), choice
    if launch_kept(key, *tensors):
        return made

    def launch(served: Served) -> None:
        run_and_keep(served.kernel, tensors, (m, columns, call.parts), tensors, key)

    serve(KERNELS, SPLIT, call, m, fn, launch, choice)
    return made


def several(x: torch.Tensor, axis: int) -> torch.Tensor:
    """x, or an axis of one row of fn with another of zeros.

    Helion drops the index of an axis of 1 (docs/helion.md).
    """
    if x.size(axis) > 1:
        return x
    return torch.cat([x, torch.zeros_like(x)], axis)


def partials(
    x: torch.Tensor, split: torch.Tensor, precision: str, choice: Choice | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(partials (T, splits, M), squares (T, splits)) of x (T, K) over CHUNK columns each, in float32."""
    tokens, columns = x.shape
    m, splits = split.size(0), -(-columns // CHUNK)
    made = x.new_empty((tokens, splits, m), dtype=torch.float32)
    squares = x.new_empty((tokens, splits), dtype=torch.float32)
    tensors = x, split, made, squares
    key = PARTIALS, layout_key(*tensors), precision, choice
    if launch_kept(key, *tensors):
        return made, squares
    call = call_for(m, columns, x.dtype, precision)

    def launch(served: Served) -> None:
        own = m, columns, splits, CHUNK, call.block_m, call.x_parts, call.parts, served.interpret
        run_and_keep(served.kernel, tensors, own, tensors, key)

    serve(KERNELS, PARTIALS, call, tokens, x, launch, choice)
    return made, squares


def reduce(
    made: torch.Tensor,
    squares: torch.Tensor,
    call: MixesCall,
    norm_eps: float,
    eps_outside: bool,
    choice: Choice | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(mixes (T, M), norms (T, 2)) from partials and squares."""
    tokens, splits, m = made.shape
    mixes, norms = made.new_empty((tokens, m)), made.new_empty((tokens, 2))
    tensors = made, squares, mixes, norms
    key = REDUCE, layout_key(*tensors), call.columns, norm_eps, eps_outside, choice
    if launch_kept(key, *tensors):
        return mixes, norms

    def launch(served: Served) -> None:
        run_and_keep(served.kernel, tensors, (splits, call.columns, norm_eps, eps_outside), tensors, key)

    serve(KERNELS, REDUCE, call, tokens, made, launch, choice)
    return mixes, norms


def forward(
    x: torch.Tensor, fn: torch.Tensor, norm_eps: float, eps_outside: bool, precision: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(mixes (..., M), norms (..., 2)); the contract is api.hc_mixes's."""
    m, columns = fn.shape
    lead = x.shape[:-1] if x.size(-1) == columns else x.shape[:-2]
    x, fn = placed(x.reshape(-1, columns)), several(parameter(fn), 0)
    call = call_for(len(fn), columns, x.dtype, precision)
    mixes, norms = reduce(*partials(x, split(fn, call), precision), call, norm_eps, eps_outside)
    return mixes[:, :m].contiguous().view(*lead, m), norms.view(*lead, 2)


def upstream(
    dmixes: torch.Tensor,
    mixes: torch.Tensor,
    norms: torch.Tensor,
    call: MixesCall,
    choice: Choice | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(g (T, parts, M) in bfloat16, along (T,)): what the backward takes of the upstream gradient."""
    tokens, m = mixes.shape
    g = mixes.new_empty((tokens, call.parts, m), dtype=torch.bfloat16)
    along = mixes.new_empty((tokens,))
    tensors = dmixes, mixes, norms, g, along
    key = UPSTREAM, layout_key(*tensors), call.columns, choice
    if launch_kept(key, *tensors):
        return g, along

    def launch(served: Served) -> None:
        run_and_keep(served.kernel, tensors, (call.parts, served.reciprocal), tensors, key)

    serve(KERNELS, UPSTREAM, call, tokens, mixes, launch, choice)
    return g, along


def gradients(
    g: torch.Tensor,
    along: torch.Tensor,
    x: torch.Tensor,
    fn: torch.Tensor,
    call: MixesCall,
    choice: Choice | None = None,
    others: tuple[torch.Tensor | None, ...] = (None, None, None),
    asked: Asked | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(dx (T, n, C), dfn (M, n C) in float32) for x (T, n, C) and fn (M, n C).

    Args:
        others: (residual, dy, pre), gradients that x meets elsewhere (`kernels.hc_mixes_backward`).
        asked: which row of which operator the launch is looked up by; hc_mixes's own if left out.
    """
    tokens, n, columns = x.shape
    kernels, name, looked_up = asked or Asked(KERNELS, BACKWARD, call)
    device, _, _ = serving.device_at(serving.index_of(x))
    taken = choice or serving.choose(kernels[name], looked_up, tokens, device)
    shares, blocks = dict(taken.variant)["shares"], -(-call.m // call.block_m)
    dx, sums = torch.empty_like(x), x.new_empty((shares, call.m, n, columns), dtype=torch.float32)
    tensors = g, along, x, fn.view(-1, n, columns), *others, dx, sums
    key = name, layout_key(*tensors), call.precision, choice
    if not launch_kept(key, *tensors):

        def launch(served: Served) -> None:
            own = (
                call.m, n, columns, shares, SHARE * blocks, call.block_m, blocks,
                call.x_parts, call.parts, call.dx_parts, served.reciprocal, served.interpret,
            )  # fmt: skip
            run_and_keep(served.kernel, tensors, own, tensors, key)

        serve(kernels, name, looked_up, tokens, x, launch, taken if choice else None)
    return dx, sums.sum(0).view(call.m, n * columns)


def backward(
    dmixes: torch.Tensor,
    x: torch.Tensor,
    fn: torch.Tensor,
    mixes: torch.Tensor,
    norms: torch.Tensor,
    precision: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(dx, dfn in float32)."""
    m, columns = fn.shape
    dmixes, mixes, norms = (flattened(t, 1) for t in (dmixes, mixes, norms))
    rows = several(parameter(fn), 0)
    call = call_for(len(rows), columns, x.dtype, precision)
    given = upstream(several(dmixes, 1), several(mixes, 1), norms, call)
    dx, dfn = gradients(*given, placed(x.reshape(-1, columns)).unsqueeze(1), rows, call)
    return dx.view(x.shape), dfn[:m]
