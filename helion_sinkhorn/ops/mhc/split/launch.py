"""From tensors to launches of hc_split_sinkhorn: views, the choice of configs, sums over tokens."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch

from helion_sinkhorn.ops.mhc.split import space
from helion_sinkhorn.ops.mhc.split.options import CoefficientGradients, SplitOptions
from helion_sinkhorn.ops.mhc.split.partials import Reduce
from helion_sinkhorn.ops.mhc.split.space import HcCall
from helion_sinkhorn.ops.mhc.split.views import (
    At,
    gradient_views,
    logits_view,
    places_in,
    rooms,
    written_view,
)
from helion_sinkhorn.ops.sinkhorn.scaling import lean_is_safe, pairs_are_safe, pivot_is_safe
from helion_sinkhorn.ops.sinkhorn.views import thread_of
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import (
    MOST_REPEATS,
    Chosen,
    launch,
    launch_chosen,
    launch_kept,
    run_and_keep,
)
from helion_sinkhorn.runtime.views import parameter, placed
from helion_sinkhorn.runtime.wanted import Some, only

FORWARD, BACKWARD = "hc_split_sinkhorn_forward", "hc_split_sinkhorn_backward"
REDUCED = "hc_split_sinkhorn_reduced"
BODIES = "helion_sinkhorn.ops.mhc.split.kernels"
TOGETHER = 4
"""Splits that are loaded at a time: 96 registers, in a thread that holds a token of four streams."""
Tensors = tuple[torch.Tensor, ...]


class Reduction(NamedTuple):
    """What the forward kernel takes and writes for partial sums; the defaults are for mixes."""

    norm: tuple[Any, ...] = (0, 0, 0, False, 0, 0.0, False)
    """(splits, first, together, tokens_first, size, norm_eps, eps_outside)."""
    squares: Some = None
    mixes: Some = None
    norms: Some = None


NO_REDUCTION = Reduction()
_tiles: dict[Hashable, int] = {}
"""The number of tiles of a launch of the backward kernel, by the key of the kept launch."""


@functools.lru_cache(maxsize=4096)
def call_for(n: int, n_iters: int, eps: float, dtype: torch.dtype) -> HcCall:
    """What the configs of a call are chosen for."""
    return HcCall(str(dtype)[6:], n, n_iters, eps > 0)


def shared(call: HcCall, eps: float, choice: Choice) -> tuple[bool, bool]:
    """(paired, pivoted) of a choice, each only where it is safe."""
    variant, eps = dict(choice.variant), eps if call.deepseek else 0.0
    paired = variant.get("paired", False) and pairs_are_safe(call.n, call.n, call.steps, eps)
    return paired, variant.get("pivoted", False) and pivot_is_safe(call.steps, eps)


def forward_facts(
    chosen: Chosen, call: HcCall, options: SplitOptions, norm: tuple[Any, ...]
) -> tuple[Any, ...]:
    n, n_iters, eps, *others, comb_order = options
    return (
        n, n_iters, eps, call.deepseek, *others, comb_order == "oi", *norm,
        chosen.reciprocal, *shared(call, eps, chosen.choice),
    )  # fmt: skip


def backward_facts(
    chosen: Chosen, call: HcCall, eps: float, post_mult: float, comb_order: str
) -> tuple[Any, ...]:
    variant = dict(chosen.choice.variant)
    length = variant.get("length", 1)
    return (
        call.n, call.n_iters, eps, call.deepseek, post_mult, comb_order == "oi",
        length, max(call.steps - 1, 0) // length, chosen.reciprocal, *shared(call, eps, chosen.choice),
        variant.get("lean", False) and lean_is_safe(call.n, call.n, eps if call.deepseek else 0.0),
    )  # fmt: skip


KERNELS = {
    name: Kernel(
        name, f"{BODIES}:{body}", HcCall, *own, traits=frozenset({"normalises", "gates", *traits})
    )
    # own: the default, the space and the facts
    for name, body, traits, *own in (
        (FORWARD, FORWARD, ("returns float32",), space.forward_default, space.forward_space, forward_facts),
        # the forward with partial sums for mixes, which loads more, so that other configs may be the best
        (
            REDUCED, FORWARD, ("returns float32", "norms"),
            space.forward_default, space.forward_space, forward_facts,
        ),
        (BACKWARD, BACKWARD, (), space.backward_default, space.backward_space, backward_facts),
    )
}  # fmt: skip


def forward(
    mixes: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    options: SplitOptions,
    out_dtype: torch.dtype,
    choice: Choice | None = None,
    into: Sequence[Some] = (None,) * 3,
) -> Tensors:
    """(pre, post, comb), in the tensors of `into` if given; the contract is api.hc_split_sinkhorn's."""
    made = rooms(mixes, mixes.shape[:-1], options.n, out_dtype, into)
    launch_forward(mixes, scale, base, made, options, NO_REDUCTION, choice)
    return made


def forward_reduced(
    partials: torch.Tensor,
    reduce: Reduce,
    scale: torch.Tensor,
    base: torch.Tensor,
    options: SplitOptions,
    out_dtype: torch.dtype,
    choice: Choice | None = None,
) -> Tensors:
    """(pre, post, comb, mixes, norms); the contract is torch_op's.

    Layouts (splits, T) and (T, splits) are read as they are; any other layout is copied.
    """
    (splits, *lead, columns), squares = partials.shape, reduce.squares
    results = rooms(partials, lead, options.n, out_dtype, (None,) * 3)
    mixes, norms = partials.new_empty((*lead, columns)), partials.new_empty((*lead, 2))
    by_token = partials.movedim(0, -2), squares.movedim(0, -1)
    tokens_first = splits > 1 and all(t.is_contiguous() for t in by_token)
    if tokens_first:
        partials, squares = by_token
    norm = splits, (splits - 1) % TOGETHER + 1, TOGETHER, tokens_first, *reduce[1:]
    reduction = Reduction(norm, placed(squares), mixes, norms)
    launch_forward(partials, scale, base, results, options, reduction, choice)
    return *results, mixes, norms


def launch_forward(
    x: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    results: Tensors,
    options: SplitOptions,
    reduction: Reduction,
    choice: Choice | None,
) -> None:
    """One launch of the forward kernel on x, which are mixes or partial sums, into (pre, post, comb)."""
    x, scale, base = placed(x), parameter(scale), parameter(base)
    pre, post, comb = results
    norm, squares, mixes, norms = reduction
    n, n_iters, eps, *_ = options
    tokens, columns = pre.numel() // n, n * n + 2 * n
    tensors = (
        x, At(x, 2 * n), scale, base, At(base, 2 * n), pre, post, comb,
        squares, mixes, None if mixes is None else At(mixes, 2 * n), norms,
    )  # fmt: skip

    def views(chosen: Chosen) -> tuple[torch.Tensor | None, ...]:
        thread = thread_of(chosen.choice)
        flat = any(thread)
        rows = x.view(-1, columns)
        of_reduction = (None,) * 4
        if mixes is not None:
            mixed = mixes.view(tokens, columns)
            of_reduction = (
                squares.view(-1), mixed.view(tokens, n + 2, n), written_view(mixed[:, 2 * n :], n, flat),
                norms.view(tokens, 2),
            )  # fmt: skip
        return (
            rows.view(-1, n + 2, n), logits_view(rows[:, 2 * n :], n, thread), scale,
            base.view(n + 2, n), logits_view(base[2 * n :], n, thread, tokens),
            pre.view(-1, n), post.view(-1, n), written_view(comb.view(-1, n * n), n, flat), *of_reduction,
        )  # fmt: skip

    launch(
        KERNELS[FORWARD if mixes is None else REDUCED], call_for(n, n_iters, eps, x.dtype), tensors,
        options, norm, batch=tokens, choice=choice, views=views,
        # all are contiguous, so nothing else describes their layout
        layouts=(tokens, n, x.dtype, x.device, pre.dtype),
    )  # fmt: skip


def backward(
    upstream: CoefficientGradients,
    mixes: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    options: SplitOptions,
    wanted: Sequence[bool] = (True, True),
    choice: Choice | None = None,
) -> tuple[Some, Some]:
    """(dmixes, dbase and dscale in one tensor), None for each that is not wanted."""
    if all([t is None for t in upstream]):
        # Helion generates no kernel that writes nothing
        return only((torch.zeros_like(mixes), scale.new_zeros(base.numel() + 3).float()), wanted)
    mixes, scale, base = placed(mixes), parameter(scale), parameter(base)
    upstream = dpre, dpost, dcomb = [None if t is None else placed(t) for t in upstream]
    n, n_iters, eps, post_mult, _, _, comb_order = options
    tokens, columns = mixes.numel() // base.numel(), base.numel()
    whole = dpre is not None and dpost is not None and dcomb is not None
    dmixes = (torch.empty_like if whole else torch.zeros_like)(mixes) if wanted[0] else None
    # the sums of the gates, of the logits, and those of the scale at a 16-byte boundary
    width = -(-(columns + 3) // 4) * 4
    dtypes = [None if t is None else t.dtype for t in upstream]
    key = (
        BACKWARD, tokens, mixes.dtype, mixes.device, *dtypes, n, n_iters, eps, post_mult, comb_order,
        *wanted, choice,
    )  # fmt: skip

    def rows_for(tiles: int) -> Some:
        return (scale.new_empty if whole else scale.new_zeros)((tiles, width)) if wanted[1] else None

    def tensors(sums: Some) -> tuple[torch.Tensor | At | None, ...]:
        return (
            mixes, At(mixes, 2 * n), scale, base, At(base, 2 * n), dpre, dpost, dcomb,
            *places_in(dmixes, 0, 2 * n), *places_in(sums, 0, 2 * n, columns),
        )  # fmt: skip

    def gradients() -> tuple[Some, Some]:
        return dmixes, None if sums is None else sums.sum(0)[: columns + 3]

    tiles = _tiles.get(key)
    sums = None if tiles is None else rows_for(tiles)
    if tiles and launch_kept(key, *tensors(sums)):
        return gradients()
    call = call_for(n, n_iters, eps, mixes.dtype)

    def make(chosen: Chosen) -> None:
        nonlocal sums
        tiles = 1 if chosen.interpret else tiles_of(chosen.choice, tokens)
        if sums is None or sums.size(0) != tiles:
            sums = rows_for(tiles)
        thread, rows = thread_of(chosen.choice), mixes.view(tokens, columns)
        views = (
            rows.view(tokens, n + 2, n), logits_view(rows[:, 2 * n :], n, thread), scale,
            base.view(n + 2, n), logits_view(base[2 * n :], n, thread, tokens),
            *(None if t is None else t.view(tokens, n) for t in (dpre, dpost)),
            None if dcomb is None else logits_view(dcomb.view(tokens, n * n), n, thread),
            *gradient_views(dmixes, sums, n, any(thread)),
        )  # fmt: skip
        own = KERNELS[BACKWARD].after_tensors(chosen, call, eps, post_mult, comb_order)
        run_and_keep(chosen, views, own, tensors(sums), key)
        if len(_tiles) >= MOST_REPEATS:
            _tiles.clear()
        _tiles[key] = tiles

    launch_chosen(KERNELS[BACKWARD], call, tokens, mixes, make, choice)
    return gradients()


def tiles_of(choice: Choice, tokens: int) -> int:
    """The number of tiles of a launch, each of which has a row of sums."""
    return -(-tokens // dict(choice.config)["block_sizes"][0])
