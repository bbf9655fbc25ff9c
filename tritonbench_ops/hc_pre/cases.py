"""The inputs of `--op hc_pre`, its backends, and the bounds of their results."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence

import torch

from helion_sinkhorn import hc_pre, reference
from helion_sinkhorn.lab.pre.budget import RESULTS, error_budget, exact
from helion_sinkhorn.lab.pre.workloads import HcPreWorkload
from tritonbench_ops import flags
from tritonbench_ops.bounds import largest_share
from tritonbench_ops.hc_pre.arguments import FIELDS, PARSER
from tritonbench_ops.inductor import compiled
from tritonbench_ops.measure import of_mode

Tensors = Sequence[torch.Tensor]
PIECE_ENTRIES = 1 << 24
"""Entries of x computed in float64 at a time."""

parse = PARSER.parse_args


def cases(options: argparse.Namespace, dtype: torch.dtype) -> list[HcPreWorkload]:
    """The bench workloads as `options` change them, each once."""
    return flags.bench(HcPreWorkload, options, FIELDS, dtype)


def inputs(case: HcPreWorkload, device: torch.device | str) -> tuple[torch.Tensor, ...]:
    """(x (T, n, C), pre (T, n), dy (T, C))."""
    return tuple(t.flatten(0, 1) for t in case.make_inputs(device=device))


def x_value(x: torch.Tensor) -> str:
    """An input as tables show it."""
    return "x".join(map(str, x.shape))


def bytes_moved(x: torch.Tensor, pre: torch.Tensor, mode: str) -> int:
    """Bytes of every tensor moved once: x, pre and y; dy, x and dx, pre and dpre."""
    y = x.nbytes // x.size(1)
    forward, backward = x.nbytes + y + pre.nbytes, 2 * x.nbytes + y + 2 * pre.nbytes
    return of_mode(mode, forward, backward)


def operations(x: torch.Tensor) -> float:
    """Floating-point operations of forward: a product and an addition an entry."""
    return 2.0 * x.numel()


def in_float32(x: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """The specification in float32, rounded once."""
    return reference.hc_pre(x.float(), pre.float()).to(x.dtype)


BASELINE = "eager"
BACKENDS: dict[str, Callable[[], Callable[..., torch.Tensor]]] = {
    BASELINE: lambda: in_float32,
    "torch_compile": functools.partial(compiled, in_float32),
    "helion_hc_pre": lambda: hc_pre,
}
"""name -> what builds the function; it takes x and pre."""
UNJUDGED = (BASELINE, "torch_compile")
"""Those that need not keep the budget."""


def share_of_budget(given: Tensors, y: torch.Tensor | None, gradients: Tensors | None) -> float:
    """The largest error of all entries, each in units of its own budget, computed where the tensors are.

    Args:
        given: of `inputs`.
        y: or None where the mode has none.
        gradients: dx and dpre, or None.
    """
    given = [t.detach() for t in given]
    found = dict(zip(RESULTS, (y, *(gradients or ())), strict=False))
    found = {name: t for name, t in found.items() if t is not None}
    x, shares = given[0], [0.0]
    step = max(1, PIECE_ENTRIES // x[0].numel())
    for first in range(0, len(x), step):
        at = slice(first, first + step)
        piece = [t[at] for t in given]
        truth, budgets = exact(*piece), error_budget(*piece)
        shares += [largest_share(t[at], truth[name], budgets[name]) for name, t in found.items()]
    return max(shares)
