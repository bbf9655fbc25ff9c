"""The inputs of `--op hc_post`, its backends, and the bounds of their results."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable, Sequence

import torch

from helion_sinkhorn import hc_post, reference
from helion_sinkhorn.lab.post.budget import RESULTS, error_budget, exact
from helion_sinkhorn.lab.post.workloads import HcPostWorkload
from tritonbench_ops import flags
from tritonbench_ops.bounds import largest_share
from tritonbench_ops.hc_post.arguments import FIELDS, PARSER
from tritonbench_ops.inductor import compiled
from tritonbench_ops.measure import of_mode

Tensors = Sequence[torch.Tensor]
PIECE_ENTRIES = 1 << 24
"""Entries of x computed in float64 at a time."""

parse = PARSER.parse_args


def cases(options: argparse.Namespace, dtype: torch.dtype) -> list[HcPostWorkload]:
    """The bench workloads as `options` change them, each once."""
    return flags.bench(HcPostWorkload, options, FIELDS, dtype)


def inputs(case: HcPostWorkload, device: torch.device | str) -> tuple[torch.Tensor, ...]:
    """(f (T, C), x (T, n, C), post (T, n), comb (T, n, n), upstream gradient like x); no bias."""
    f, x, post, comb, _, grad = dataclasses.replace(case, has_bias=False).make_inputs(device=device)
    return tuple(t.flatten(0, 1) for t in (f, x, post, comb, grad))


def x_value(x: torch.Tensor) -> str:
    """An input as tables show it."""
    return "x".join(map(str, x.shape))


def bytes_moved(f, x, post, comb, mode: str) -> int:
    """Bytes of every tensor moved once: f, x, the weights and the new streams; in the backward the upstream
    gradient, f, x and the weights, and their gradients."""
    weights = post.nbytes + comb.nbytes
    forward, backward = f.nbytes + 2 * x.nbytes + weights, 2 * f.nbytes + 3 * x.nbytes + 2 * weights
    return of_mode(mode, forward, backward)


def operations(x: torch.Tensor) -> float:
    """Floating-point operations of forward: n + 1 products and additions an entry."""
    return 2.0 * (x.size(1) + 1) * x.numel()


def in_float32(f, x, post, comb) -> torch.Tensor:
    """The specification in float32, rounded once."""
    return reference.hc_post(f.float(), x.float(), post.float(), comb.float()).to(x.dtype)


BASELINE = "eager"
BACKENDS: dict[str, Callable[[], Callable[..., torch.Tensor]]] = {
    BASELINE: lambda: in_float32,
    "torch_compile": functools.partial(compiled, in_float32),
    "helion_hc_post": lambda: hc_post,
}
"""name -> what builds the function; it takes f, x, post and comb."""
UNJUDGED = (BASELINE, "torch_compile")
"""Those that need not keep the budget."""


def share_of_budget(given: Tensors, out: torch.Tensor | None, gradients: Tensors | None) -> float:
    """The largest error of all entries, each in units of its own budget, computed where the tensors are.

    Args:
        given: of `inputs`.
        out: or None where the mode has none.
        gradients: df, dx, dpost and dcomb, or None.
    """
    given = [t.detach() for t in given]
    found = dict(zip(RESULTS, (out, *(gradients or ())), strict=False))
    found = {name: t for name, t in found.items() if t is not None}
    x, shares = given[1], [0.0]
    step = max(1, PIECE_ENTRIES // x[0].numel())
    for first in range(0, len(x), step):
        at = slice(first, first + step)
        piece = [t[None, at] for t in given]
        truth, budgets = exact(*piece), error_budget(*piece)
        shares += [largest_share(t[None, at], truth[name], budgets[name]) for name, t in found.items()]
    return max(shares)
