"""The residual streams of mHC, as all operators on them take them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from helion_sinkhorn.runtime.checks import check_finite
from helion_sinkhorn.runtime.pieces import COMPUTING

MOST_STREAMS = 16
LEAST_EPS = torch.finfo(torch.float32).smallest_normal
ACCEPTED_EPS = f"a finite float of at least {LEAST_EPS:.1e}, float32's smallest normal number"
COMB_ORDERS = ("io", "oi")
"""comb[..., input stream, output stream], as DeepSeek has it, and its transpose."""


def check_streams(x: torch.Tensor) -> None:
    """Raise ValueError unless x is (..., n, C) with 1 to MOST_STREAMS streams of at least one entry."""
    if x.dim() < 2 or not 1 <= x.shape[-2] <= MOST_STREAMS or x.shape[-1] < 1:
        raise ValueError(
            f"x has shape {tuple(x.shape)}; pass (..., n, C): n streams, 1 to {MOST_STREAMS}, of C entries, "
            "at least 1"
        )


def evenly(x: torch.Tensor) -> torch.Tensor:
    """Weights (..., n) of 1/n, with which hc_pre makes the mean of the streams x."""
    return x.new_full(x.shape[:-1], 1 / x.size(-2), dtype=COMPUTING[x.dtype])


def check_norm_eps(name: str, eps: object) -> None:
    """Raise unless eps is a number that may be added to the mean square of a norm."""
    check_finite(name, eps, ACCEPTED_EPS)
    if eps < LEAST_EPS:
        raise ValueError(
            f"{name} is {eps}; pass {ACCEPTED_EPS}: with a smaller one a token of zeros has no finite norm"
        )


def refuse_merged(x: torch.Tensor, n: int, entries: int, otherwise: str = "", name: str = "x") -> None:
    """Raise ValueError where x has the shape (..., n C) of merged streams that fits the other arguments.

    Functions that accept merged streams have the option `merged`.

    Args:
        n: the number of streams that the other arguments fit; 0 if they fit none.
        entries: n C, the entries of a token's streams.
        otherwise: what to pass if x is not merged, for shapes that could be (..., n, C) too.
    """
    if 1 < n <= MOST_STREAMS and x.shape[-1:] == (entries,) and entries and entries % n == 0:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}, as merged streams have; pass (..., n, C): "
            f"{name}.unflatten(-1, ({n}, {entries // n})), or merged=True"
            + (otherwise if x.shape[-2:-1] == (n,) else "")
        )


def streams_of(rows: int) -> int:
    """n of a site's projection, which has n^2 + 2n rows; 0 if there is no such n."""
    return next((n for n in range(1, MOST_STREAMS + 1) if n * (n + 2) == rows), 0)


def check_projection(
    x: torch.Tensor, fn: torch.Tensor, rows: Callable[[int], int], n_of: Callable[[int], int]
) -> None:
    """Raise ValueError unless fn projects the streams x; `rows` maps n to rows of fn, `n_of` maps back."""
    n, entries = (x.shape[-2], x.shape[-2] * x.shape[-1]) if x.dim() > 1 else (0, 0)
    wanted = rows(n), entries
    if tuple(fn.shape) != wanted and fn.dim() == 2:
        otherwise = f"; or, if they are not, fn of shape {wanted} and not {tuple(fn.shape)}"
        refuse_merged(x, n_of(fn.shape[0]), fn.shape[1], otherwise)
    check_streams(x)
    if tuple(fn.shape) != wanted:
        raise ValueError(f"fn has shape {tuple(fn.shape)}; for x of shape {tuple(x.shape)} pass {wanted}")


def leading(x: torch.Tensor, fn: torch.Tensor) -> torch.Size:
    """The dimensions of x (..., n C) or (..., n, C) that count tokens, for fn (M, n C)."""
    return x.shape[:-1] if x.shape[-1] == fn.shape[-1] else x.shape[:-2]


def for_projection(x: torch.Tensor) -> torch.Tensor:
    """x as hc_mixes takes it: a single stream is merged, since (..., 1, C) reads as merged streams."""
    return x.flatten(-2) if x.size(-2) == 1 else x
