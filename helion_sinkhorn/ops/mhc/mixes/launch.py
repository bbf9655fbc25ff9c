"""From tensors to launches of the hc_mixes kernels: views, partitions, the choice of configs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from helion_sinkhorn.ops.mhc.mixes import space
from helion_sinkhorn.ops.mhc.mixes.space import CHUNK, MixesCall
from helion_sinkhorn.ops.mhc.prepared import prepared
from helion_sinkhorn.ops.mhc.streams import leading
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import Chosen, chosen_for, launch
from helion_sinkhorn.runtime.views import flattened, parameter, placed
from helion_sinkhorn.runtime.wanted import Some

SPLIT, PARTIALS, REDUCE = "hc_mixes_split", "hc_mixes_partials", "hc_mixes_reduce"
UPSTREAM, BACKWARD = "hc_mixes_upstream", "hc_mixes_backward"
BODIES = "helion_sinkhorn.ops.mhc.mixes.kernels"
LAYOUT = "rows"
"""The name that `prepare` gives the layout of parts that SPLIT writes."""
SHARE = 64
"""The tokens of a share are a multiple of it, so that no compiled program depends on their number."""


class Partials(NamedTuple):
    """Partial sums of a projection in float32, over CHUNK columns each."""

    products: torch.Tensor
    """(T, splits, M)."""
    squares: torch.Tensor
    """(T, splits), of the entries of x."""


class Upstream(NamedTuple):
    """What the backward takes for the gradient of the mixes."""

    g: torch.Tensor
    """(T, parts, M) in bfloat16."""
    along: torch.Tensor
    """(T,), the factor of x that the norm adds to dx."""


class Dx(NamedTuple):
    """What dx is summed with, its dtype and its memory."""

    dresidual: Some = None
    """(T, n, C)."""
    dy: Some = None
    """(T, C), the gradient of the collapse of x by `weights`."""
    weights: Some = None
    dtype: torch.dtype | None = None
    """The dtype of dx; None for the dtype of x."""
    into: Some = None
    """Contiguous memory for dx, maybe of dresidual: a kernel reads an entry before it writes it."""


ALONE = Dx()


def partials_facts(chosen: Chosen, call: MixesCall, precision: str) -> tuple[Any, ...]:
    splits = -(-call.columns // CHUNK)
    return call.m, call.columns, splits, CHUNK, call.block_m, call.x_parts, call.parts, chosen.interpret


def backward_facts(
    chosen: Chosen, call: MixesCall, precision: str, n: int, columns: int, shares: int
) -> tuple[Any, ...]:
    """What the body of BACKWARD takes after its tensors, for streams (T, n, C)."""
    blocks = -(-call.m // call.block_m)
    return (
        call.m, n, columns, shares, SHARE * blocks, call.block_m, blocks,
        call.x_parts, call.parts, call.dx_parts, chosen.reciprocal, chosen.interpret,
    )  # fmt: skip


KERNELS = {
    name: Kernel(name, f"{BODIES}:{name}", MixesCall, *own, traits=frozenset(traits), size=size)
    # own: the default, the space and the facts
    for name, traits, size, *own in (
        (
            SPLIT, ("splits", "overlaps"), lambda call: call.m, space.split_default, space.split_space,
            lambda chosen, call, rows: (rows, call.columns, call.parts),
        ),
        (
            PARTIALS, ("splits", "overlaps"), None, space.partials_default, space.partials_space,
            partials_facts,
        ),
        (
            REDUCE, ("norms",), None, space.reduce_default, space.reduce_space,
            lambda chosen, call, *values: values,
        ),
        (
            UPSTREAM, ("splits",), None, space.reduce_default, space.reduce_space,
            lambda chosen, call, _: (call.parts, chosen.reciprocal),
        ),
        (BACKWARD, ("splits",), None, space.backward_default, space.backward_space, backward_facts),
    )
}  # fmt: skip


@functools.lru_cache(maxsize=4096)
def call_for(m: int, columns: int, dtype: torch.dtype, precision: str) -> MixesCall:
    """What the configs of a call are chosen for; a single row gets a second one of zeros (`several`)."""
    return MixesCall(str(dtype)[6:], max(2, m), columns, precision)


def split(fn: torch.Tensor, call: MixesCall, choice: Choice | None = None) -> torch.Tensor:
    """The bfloat16 parts (M, parts, K) of fn (M, K)."""
    m, columns = fn.shape
    made = fn.new_empty((m, call.parts, columns), dtype=torch.bfloat16)
    launch(KERNELS[SPLIT], call, (fn, made), m, batch=m, choice=choice)
    return made


def several(x: torch.Tensor, axis: int) -> torch.Tensor:
    """x, with a row of zeros added where the axis of fn's rows has one entry.

    Helion drops the index of an axis of 1 (docs/dev/helion.md).
    """
    if x.size(axis) > 1:
        return x
    return torch.cat([x, torch.zeros_like(x)], axis)


def partials(x: torch.Tensor, split: torch.Tensor, precision: str, choice: Choice | None = None) -> Partials:
    """Partial sums for x (T, K) and the parts of fn that SPLIT makes."""
    tokens, columns = x.shape
    m, splits = split.size(0), -(-columns // CHUNK)
    products = x.new_empty((tokens, splits, m), dtype=torch.float32)
    made = Partials(products, x.new_empty((tokens, splits), dtype=torch.float32))
    call = call_for(m, columns, x.dtype, precision)
    launch(KERNELS[PARTIALS], call, (x, split, *made), precision, batch=tokens, choice=choice)
    return made


def reduce(
    made: Partials, call: MixesCall, norm_eps: float, eps_outside: bool, choice: Choice | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(mixes (T, M), norms (T, 2)) from partial sums."""
    tokens, splits, m = made.products.shape
    mixes, norms = made.products.new_empty((tokens, m)), made.products.new_empty((tokens, 2))
    values = splits, call.columns, norm_eps, eps_outside
    launch(KERNELS[REDUCE], call, (*made, mixes, norms), *values, batch=tokens, choice=choice)
    return mixes, norms


def forward(
    x: torch.Tensor, fn: torch.Tensor, norm_eps: float, eps_outside: bool, precision: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(mixes (..., M), norms (..., 2)); the contract is api.hc_mixes's."""
    m, lead = len(fn), leading(x, fn)
    made, call = projected(x, fn, precision)
    mixes, norms = reduce(made, call, norm_eps, eps_outside)
    return mixes[:, :m].contiguous().view(*lead, m), norms.view(*lead, 2)


def prenorm(
    x: torch.Tensor, fn: torch.Tensor, precision: str, product: torch.Tensor, q: torch.Tensor
) -> None:
    """Write products (T, M) and mean squares (T,) of x (..., K) or (..., n, C) and fn (M, K).

    REDUCE adds the chunks in their order, with the squares as one more row and a norm of 1 / (0 + 1) = 1.
    """
    (products, squares), call = projected(x, fn, precision)
    rows = Partials(torch.cat([products, squares.unsqueeze(-1)], -1), torch.zeros_like(squares))
    wider = call_for(rows.products.size(-1), call.columns, x.dtype, precision)
    sums, _ = reduce(rows, wider, 1.0, True)
    product.copy_(sums[:, : len(fn)])
    torch.div(sums[:, -1], call.columns, out=q)


def projected(x: torch.Tensor, fn: torch.Tensor, precision: str) -> tuple[Partials, MixesCall]:
    """`partials` of x (..., K) or (..., n, C) and fn (M, K), and the call."""
    call = call_for(len(fn), fn.size(1), x.dtype, precision)
    return sums(x, fn, call, precision), call


def sums(x: torch.Tensor, fn: torch.Tensor, call: MixesCall, precision: str) -> Partials:
    """`partials` of x (..., K) or (..., n, C) and fn (M, K), by two launches."""
    columns = x.size(-1)
    if columns != call.columns and x.stride(-2) == 0 and columns % CHUNK == 0:
        rows = several(parameter(fn), 0).view(-1, columns)
        of_rows = call_for(len(rows), columns, x.dtype, precision)
        # in blocks of other sizes the matrix instructions may add in another order
        if of_rows.block_m == call.block_m:
            one = flattened(x.select(-2, 0), 1)
            return _sums_of_copies(one, split(rows, of_rows), precision, x.size(-2))
    parts = prepared(fn, LAYOUT, call.parts)
    if parts is None:
        parts = split(several(parameter(fn), 0), call)
    return partials(placed(x.reshape(-1, call.columns)), parts, precision)


def _sums_of_copies(x: torch.Tensor, split: torch.Tensor, precision: str, n: int) -> Partials:
    """`partials` of n streams that are all equal to x (T, C): x is read once, and the bits are the same.

    A chunk of K lies within one stream.  So `split` gets a row for each row of fn and each stream, and the
    sums of their chunks are brought into the order of K.
    """
    products, squares = partials(x, split, precision)
    by_stream = products.unflatten(2, (-1, n)).permute(0, 3, 1, 2).contiguous()
    return Partials(by_stream.flatten(1, 2), squares.repeat(1, n))


def upstream(
    dmixes: torch.Tensor,
    mixes: torch.Tensor,
    norms: torch.Tensor,
    call: MixesCall,
    choice: Choice | None = None,
) -> Upstream:
    """What the backward takes for the gradient of mixes (T, M) with these norms."""
    tokens, m = mixes.shape
    g = mixes.new_empty((tokens, call.parts, m), dtype=torch.bfloat16)
    made = Upstream(g, mixes.new_empty((tokens,)))
    launch(KERNELS[UPSTREAM], call, (dmixes, mixes, norms, *made), call.columns, batch=tokens, choice=choice)
    return made


def gradients(
    given: Upstream,
    x: torch.Tensor,
    fn: torch.Tensor,
    call: Any,
    choice: Choice | None = None,
    dx_of: Dx = ALONE,
    kernel: Kernel = KERNELS[BACKWARD],
    wanted: Sequence[bool] = (True, True),
) -> tuple[Some, Some]:
    """(dx (T, n, C), dfn (M, n C) in float32) for x (T, n, C) and fn (M, n C), or None if not wanted.

    `kernel` is one with this body, and `call` what its config is chosen for.
    """
    (tokens, n, columns), m, (*beside, dtype, into) = x.shape, len(fn), dx_of
    shares = dict((choice or chosen_for(kernel, call, tokens, x)).variant)["shares"]
    dx = (torch.empty_like(x, dtype=dtype) if into is None else into.view(x.shape)) if wanted[0] else None
    sums = x.new_empty((shares, m, n, columns), dtype=torch.float32) if wanted[1] else None
    tensors = *given, x, fn.view(m, n, columns), *beside, dx, sums
    values = call.precision, n, columns, shares
    launch(kernel, call, tensors, *values, batch=tokens, choice=choice)
    return dx, None if sums is None else sums.sum(0).view(m, n * columns)


def backward(
    dmixes: torch.Tensor,
    x: torch.Tensor,
    fn: torch.Tensor,
    mixes: torch.Tensor,
    norms: torch.Tensor,
    precision: str,
    wanted: Sequence[bool] = (True, True),
) -> tuple[Some, Some]:
    """(dx, dfn in float32), None for each that is not wanted."""
    dmixes, mixes, norms = (flattened(t, 1) for t in (dmixes, mixes, norms))
    call = call_for(len(fn), fn.size(1), x.dtype, precision)
    given = upstream(several(dmixes, 1), several(mixes, 1), norms, call)
    return _of_rows(given, x, fn, call, wanted)


def prenorm_backward(
    dproduct: torch.Tensor,
    dsquare: torch.Tensor,
    x: torch.Tensor,
    fn: torch.Tensor,
    precision: str,
    wanted: Sequence[bool] = (True, True),
) -> tuple[Some, Some]:
    """(dx, dfn in float32) of `prenorm`: UPSTREAM with a norm of 1, and 2 dsquare x / K for the norm."""
    rows = several(flattened(dproduct, 1), 1)
    call = call_for(len(fn), fn.size(1), x.dtype, precision)
    g, _ = upstream(rows, rows, rows.new_ones(len(rows), 2), call)
    return _of_rows(Upstream(g, dsquare.reshape(-1) * (2 / call.columns)), x, fn, call, wanted)


def _of_rows(
    given: Upstream, x: torch.Tensor, fn: torch.Tensor, call: MixesCall, wanted: Sequence[bool]
) -> tuple[Some, Some]:
    """`gradients` in the shapes of x (..., K) or (..., n, C) and fn (M, K)."""
    rows = placed(x.reshape(-1, call.columns)).unsqueeze(1)
    dx, dfn = gradients(given, rows, several(parameter(fn), 0), call, wanted=wanted)
    return None if dx is None else dx.view(x.shape), None if dfn is None else dfn[: len(fn)]
