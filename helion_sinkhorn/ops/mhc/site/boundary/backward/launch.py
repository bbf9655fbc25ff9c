"""From tensors to the launches of hc_boundary's backward in one pass over the streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from helion_sinkhorn.ops.mhc.mixes import launch as mixes_launch
from helion_sinkhorn.ops.mhc.site.boundary.backward import space
from helion_sinkhorn.ops.mhc.site.boundary.backward.space import CHUNK
from helion_sinkhorn.ops.mhc.site.boundary.launch import split_of
from helion_sinkhorn.ops.mhc.site.boundary.space import WIDTH
from helion_sinkhorn.ops.mhc.site.launch import Tensors
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import NO_CHOICES, Choices, Chosen, chosen_for, launch
from helion_sinkhorn.runtime.wanted import Some, room_for

BACKWARD, SUMS, PROJECTION = "hc_boundary_backward", "hc_boundary_sums", "hc_boundary_projection"
SECOND = "hc_boundary_second"
"""The pass after another one over the streams and dy, which makes what the gradient of the collapse needs."""


BODIES = "helion_sinkhorn.ops.mhc.site.boundary.backward.kernels"


def backward_facts(
    chosen: Chosen, call: SiteCall, precision: str, comb_order: str, together: bool, again: bool
) -> tuple[Any, ...]:
    mixes = call.mixes
    return (
        mixes.m, call.n, call.columns, -(-call.columns // CHUNK), CHUNK, WIDTH, mixes.block_m, mixes.dx_parts,
        together, again, comb_order == "oi", chosen.reciprocal, chosen.interpret,
    )  # fmt: skip


def sums_facts(chosen: Chosen, call: SiteCall, *values: Any) -> tuple[Any, ...]:
    return (-(-call.columns // CHUNK),)


def projection_facts(chosen: Chosen, call: SiteCall, precision: str, shares: int) -> tuple[Any, ...]:
    mixes = call.mixes
    return (
        mixes.m, call.n, call.columns, shares, mixes_launch.SHARE, mixes.block_m, mixes.x_parts, mixes.parts,
        chosen.interpret,
    )  # fmt: skip


CROSSES = frozenset({"splits", "in place"})
KERNELS = {
    name: Kernel(name, f"{BODIES}:{body}", SiteCall, *own, traits=traits)
    # own: the default, the space and the facts
    for name, body, traits, *own in (
        (BACKWARD, BACKWARD, CROSSES, space.backward_default, space.backward_space, backward_facts),
        (SECOND, BACKWARD, CROSSES, space.second_default, space.second_space, backward_facts),
        (SUMS, SUMS, frozenset(), space.sums_default, space.sums_space, sums_facts),
        (
            PROJECTION, PROJECTION, frozenset({"splits"}),
            space.projection_default, space.projection_space, projection_facts,
        ),
    )
}  # fmt: skip


class Given(NamedTuple):
    """What the pass over the streams reads, flat in its T tokens."""

    dstreams: Some
    dy: Some
    g: torch.Tensor
    along: torch.Tensor
    streams: torch.Tensor
    split: torch.Tensor
    """What `parts_of_fn` makes.  Its layout and `Pass.again` decide how products with fn are made; the config
    does not, since the default may replace one that is refused."""
    f: torch.Tensor
    x: torch.Tensor
    bias: Some
    post: torch.Tensor
    comb: torch.Tensor
    weights: torch.Tensor


class Pass(NamedTuple):
    """What the pass over the streams takes beside its tensors."""

    kernel: Kernel
    call: SiteCall
    comb_order: str
    norm: tuple[torch.Tensor, torch.Tensor] | None = None
    """The weight of the norm whose result has the gradient dy, and the factors of its gradient."""
    again: bool = False
    """Whether the new streams are computed again from the old ones and f instead of read."""
    into: Some = None
    """Contiguous memory for dx; it may be that of dstreams, since a program reads before it writes."""

    def as_chosen(self, streams: torch.Tensor, choices: Choices) -> tuple[Pass, bool]:
        """This pass in the variant chosen for its kernel, and whether fn's parts are `together` there."""
        choice = choices.get(self.kernel.name)
        variant = dict((choice or chosen_for(self.kernel, self.call, len(streams), streams)).variant)
        return self._replace(again=variant.get("again", False)), variant.get("together", False)


def parts_of_fn(fn: torch.Tensor, call: SiteCall, together: bool) -> torch.Tensor:
    """The parts of fn as `one_pass` takes them: of all streams `together`, or of each."""
    if together:
        return split_of(fn, call)
    return mixes_launch.split(fn, call.mixes).view(call.mixes.m, call.mixes.parts, call.n, call.columns)


def gradients(
    given: Given,
    pass_of: Pass,
    wanted: Sequence[bool] = (True,) * 5,
    choices: Choices = NO_CHOICES,
) -> tuple[Some, ...]:
    """(df, dx, dpost, dcomb, dweights), flat in their tokens."""
    if not any(wanted):
        return (None,) * 5
    like = given.post, given.comb, given.weights
    df, dx, *partials = one_pass(given, pass_of, wanted, choices.get(pass_of.kernel.name))
    dpost, dcomb, dweights = summed(*partials, pass_of.call, like, choices.get(SUMS))
    return df, dx, dpost, None if dcomb is None else dcomb.view(given.comb.shape), dweights


def one_pass(
    given: Given,
    pass_of: Pass,
    wanted: Sequence[bool] = (True,) * 5,
    choice: Choice | None = None,
) -> tuple[Some, ...]:
    """(df, dx, of_post, of_comb, of_weights), the last three as the kernel writes them.

    What is not wanted is None.
    """
    x, call = given.x, pass_of.call
    tokens, n, columns = x.shape
    splits = -(-columns // CHUNK)
    sizes = n, n * n, n
    partials = [
        x.new_empty((tokens, splits, size), dtype=torch.float32) if w else None
        for size, w in zip(sizes, wanted[2:], strict=True)
    ]
    into = None if pass_of.into is None else pass_of.into.view(x.shape)
    df, dx = room_for((given.f, x), (wanted[0], wanted[1] and into is None))
    made = df, dx if into is None else into, *partials
    tensors = (*given, *(pass_of.norm or (None, None)), *made)
    values = call.precision, pass_of.comb_order, given.split.dim() == 3, pass_of.again
    launch(pass_of.kernel, call, tensors, *values, batch=tokens, choice=choice)
    return made


def summed(
    of_post: Some,
    of_comb: Some,
    of_weights: Some,
    call: SiteCall,
    like: Tensors,
    choice: Choice | None = None,
) -> tuple[Some, ...]:
    """(dpost (T, n), dcomb (T, n n), dweights (T, n)) from partial sums, in the dtypes of `like`."""
    tokens = len(like[0])
    partials = of_post, of_comb, of_weights
    made = tuple(
        None if p is None else p.new_empty((tokens, p.size(2)), dtype=t.dtype)
        for p, t in zip(partials, like, strict=True)
    )
    if any(p is not None for p in partials):
        launch(KERNELS[SUMS], call, (*partials, *made), call, batch=tokens, choice=choice)
    return made


def projection(
    g: torch.Tensor, streams: torch.Tensor, call: SiteCall, choice: Choice | None = None
) -> torch.Tensor:
    """dfn (M, n C) in float32, for g (T, parts, M) and streams (T, n, C)."""
    tokens, n, columns = streams.shape
    kernel, m = KERNELS[PROJECTION], call.mixes.m
    shares = dict((choice or chosen_for(kernel, call, tokens, streams)).variant)["shares"]
    sums = streams.new_empty((shares, m, n, columns), dtype=torch.float32)
    launch(kernel, call, (g, streams, sums), call.precision, shares, batch=tokens, choice=choice)
    return sums.sum(0).view(m, n * columns)
