"""Coefficients of a site whose comb is given, or made of logits by another map than Sinkhorn."""

from __future__ import annotations

from collections.abc import Callable

import torch

from helion_sinkhorn.ops.mhc.split.forms import gated
from helion_sinkhorn.ops.mhc.split.options import SplitOptions
from helion_sinkhorn.ops.mhc.streams import check_streams, refuse_merged
from helion_sinkhorn.runtime.checks import check_same_device, check_tensor, refuse_shape
from helion_sinkhorn.runtime.torch_op import without_autocast

Comb = torch.Tensor | Callable[[torch.Tensor], torch.Tensor]
"""comb (..., n, n), or a function that makes it of logits (..., K)."""


def coefficients_beside(
    mixes: torch.Tensor, scale: torch.Tensor, base: torch.Tensor, options: SplitOptions, comb: Comb
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(pre, post, comb) of mixes (..., 2n + K): the gates of `hc_split_sinkhorn`, and comb in comb_order."""
    with without_autocast(mixes):
        pre, post, logits = gated(mixes, scale, base, options)
    if not isinstance(comb, torch.Tensor):
        comb = comb(logits)
        check_comb(comb, mixes, (*mixes.shape[:-1], options.n, options.n), "what comb returned")
    return pre, post, comb.to(logits.dtype)


def check_comb(comb: torch.Tensor, x: torch.Tensor, wanted: tuple[int, ...], name: str = "comb") -> None:
    """Raise unless comb is a floating-point tensor of this shape on the device of x."""
    check_tensor(name, comb, "(..., n, n)")
    check_same_device(name, comb, "x", x)
    if tuple(comb.shape) != tuple(wanted):
        refuse_shape(name, comb, wanted, f"for these streams pass {tuple(wanted)}")


def check_parameters_beside(
    x: torch.Tensor, fn: torch.Tensor, scale: torch.Tensor, base: torch.Tensor, comb: Comb
) -> None:
    """Raise unless the tensors project the streams x (..., n, C) to gates and to the logits of `comb`."""
    n = x.shape[-2] if x.dim() > 1 else 0
    refuse_merged(x, n, fn.shape[-1])
    check_streams(x)
    rows, entries = fn.shape[0], n * x.shape[-1]
    fits = rows == 2 * n if isinstance(comb, torch.Tensor) else rows >= 2 * n
    if fn.dim() != 2 or not fits or fn.shape[1] != entries:
        raise ValueError(
            f"fn has shape {tuple(fn.shape)}; for x of shape {tuple(x.shape)} pass ({2 * n}, {entries}) with "
            f"a tensor comb, and ({2 * n} + K, {entries}) with a function of K logits"
        )
    for name, t, shape in (("scale", scale, (3,)), ("base", base, (rows,))):
        check_tensor(name, t, f"({shape[0]},)")
        check_same_device(name, t, "x", x)
        if tuple(t.shape) != shape:
            refuse_shape(name, t, shape, f"for {rows} rows of fn pass {shape}")
    if isinstance(comb, torch.Tensor):
        check_comb(comb, x, (*x.shape[:-1], n))
    elif not callable(comb):
        raise TypeError(f"comb is {comb!r}; pass a tensor (..., n, n), or a function of logits (..., K)")
