"""From tensors to launches of hc_post: views, the choice of configs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from helion_sinkhorn.ops.mhc.out import room
from helion_sinkhorn.ops.mhc.post import space
from helion_sinkhorn.ops.mhc.post.space import PostCall
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import Chosen, Tensors, launch
from helion_sinkhorn.runtime.updates import Update
from helion_sinkhorn.runtime.views import flattened, flattened_streams, in_pieces
from helion_sinkhorn.runtime.wanted import Some, room_for

FORWARD, BACKWARD = "hc_post_forward", "hc_post_backward"
BODIES = "helion_sinkhorn.ops.mhc.post.kernels"
WITHOUT_COLUMNS = 3, 4, 8, 9
"""Places of post, comb and their gradients among the tensors of the backward."""


def forward_facts(chosen: Chosen, call: PostCall, comb_order: str) -> tuple[Any, ...]:
    return call.n, call.columns, comb_order == "oi", chosen.reciprocal


def backward_facts(chosen: Chosen, call: PostCall, comb_order: str) -> tuple[Any, ...]:
    return call.n, call.served, -(-call.n // call.served), comb_order == "oi", chosen.reciprocal


KERNELS = {
    name: Kernel(name, f"{BODIES}:{name}", PostCall, *own, traits=frozenset({"in place", *traits}))
    for name, traits, *own in (
        (FORWARD, ("overlaps",), space.forward_default, space.forward_space, forward_facts),
        (
            BACKWARD,
            ("optional results",),
            space.backward_default,
            space.backward_space,
            backward_facts,
        ),
    )
}


@functools.lru_cache(maxsize=4096)
def call_for(n: int, columns: int, dtype: torch.dtype) -> PostCall:
    """What the configs of a call are chosen for."""
    return PostCall(str(dtype)[6:], n, columns)


def forward(update: Update, comb_order: str, choice: Choice | None = None, out: Some = None) -> torch.Tensor:
    """The new streams (..., n, C); the contract is api.hc_post's.

    `out` may be x, since a program reads all streams of its columns before it writes.
    """
    f, x, post, comb, bias = update
    n, columns = x.shape[-2:]
    out = room(out, x, x.shape, x.dtype)
    f, x, post, comb = flattened(f, 1), flattened_streams(x), flattened(post, 1), flattened(comb, 2)
    tensors = f, x, post, comb, bias, out.view(-1, n, columns)
    call = call_for(n, columns, x.dtype)
    launch(KERNELS[FORWARD], call, tensors, comb_order, batch=len(x), choice=choice)
    return out


def backward(
    grad: torch.Tensor,
    update: Update,
    comb_order: str,
    wanted: Sequence[bool] = (True,) * 4,
    choice: Choice | None = None,
    over: bool = False,
) -> tuple[Some, ...]:
    """(df, dx, dpost, dcomb), None for each that is not wanted.

    Args:
        over: whether dx may be written over grad.  It is, if dtype and layout are the same and a program has
            all streams of its columns, which it reads before it writes.
    """
    f, x, post, comb, bias = update
    n, columns = x.shape[-2:]
    call = call_for(n, columns, x.dtype)
    df, dx, *others = room_for((f, x, post, comb), (wanted[0], False, *wanted[2:]))
    if wanted[1]:
        fits = over and call.served == n and grad.dtype == x.dtype and grad.is_contiguous()
        dx = grad if fits else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    made = df, dx, *others
    given = flattened(f, 1), flattened(x, 2), flattened(post, 1), flattened(comb, 2)
    rows = (None if t is None else t.view(like.shape) for t, like in zip(made, given, strict=True))
    tensors = flattened(grad, 2), *given, bias, *rows

    def views(chosen: Chosen) -> Tensors:
        return tuple(
            t if t is None or k in WITHOUT_COLUMNS else in_pieces(t, call.run) for k, t in enumerate(tensors)
        )

    launch(KERNELS[BACKWARD], call, tensors, comb_order, batch=len(tensors[2]), choice=choice, views=views)
    return made
