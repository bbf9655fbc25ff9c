"""hc_mixes(...): the contract, its checks, and which implementation computes a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from helion_sinkhorn.ops.mhc.mixes import torch_op
from helion_sinkhorn.ops.mhc.streams import MOST_STREAMS, check_norm_eps
from helion_sinkhorn.runtime.checks import (
    check_flag,
    check_implementation,
    check_option,
    check_same_device,
    check_tensor,
    implementation_for,
)
from helion_sinkhorn.runtime.export import named_for_export
from helion_sinkhorn.runtime.pieces import COMPUTING

MOST_ROWS = MOST_STREAMS**2 + 2 * MOST_STREAMS
"""Rows of fn: n^2 + 2n for n = 16 streams, 288."""
PRECISIONS = ("float32", "tf32")


class Prenorm(NamedTuple):
    """The projection of streams and their mean square, before the norm."""

    product: torch.Tensor
    """(..., M), z."""
    mean_square: torch.Tensor
    """(...), q."""


named_for_export(Prenorm)


def hc_mixes(
    x: torch.Tensor,
    fn: torch.Tensor,
    norm_eps: float = 1e-6,
    norm_weight: torch.Tensor | None = None,
    *,
    precision: str = "float32",
    eps_outside: bool = False,
    prenorm: bool = False,
    implementation: str = "auto",
) -> torch.Tensor | Prenorm:
    """Project the residual streams of every token on the M rows of fn, and divide by the streams' norm.

    With w = norm_weight or 1, and K = n C:
        z_j = sum_i fn_ji w_i x_i,  q = sum_i x_i^2 / K,  r = 1 / sqrt(q + norm_eps),  mixes_j = r z_j
    and with eps_outside r = 1 / (sqrt(q) + norm_eps).  This is an RMSNorm of all K values and a projection,
    with the projection computed first.  The gradients are exact and computed from x, fn and mixes:
        dx_i = r sum_j dmixes_j fn_ji w_i + k <dmixes, mixes> x_i,  k = -r^2 / K, or -r / (K sqrt(q)) with
               eps_outside,
        dfn_ji = w_i d_ji,  dw_i = sum_j fn_ji d_ji,  d_ji = sum over tokens of r dmixes_j x_i
    With prenorm=True the results are z and q, as in DeepGEMM's hc_prenorm_gemm:
        dx_i = sum_j dz_j fn_ji w_i + 2 dq x_i / K,  d_ji = sum over tokens of dz_j x_i

    Args:
        x: (..., n, C) with n C = K, or merged (..., K), float32, bfloat16, float16 or float64, any layout.
            An x whose last dimension has K entries is merged: for one stream (..., 1, K) mixes would be
            (..., 1, M), so merge it first.
        fn: (M, K), M from 1 to 288, any floating dtype, converted to float32.
        norm_eps: at least 1.2e-38, float32's smallest normal number.
        norm_weight: (K,), any floating dtype, the norm's weight; 1 if left out.
        precision: how many bfloat16 parts the kernels split factors into.  "float32" splits fn, dmixes and
            float32 x into three and float16 x into two, which hold every bit: errors come from float32 sums
            only.  Where dx is narrower than float32, its factors have two parts, and its error is at most
            1.0002 times its one rounding.  "tf32" splits into two, 16 bits, for users who need only
            the 11 bits of TF32: it takes two thirds of the products or less.  PyTorch computes in float32
            for both.
        eps_outside: add norm_eps to the root instead of under it.
        prenorm: return z and q, on which norm_eps and eps_outside have no influence.  Use it to add sums over
            parts of the entries, such as the parts on several ranks, before the norm.
        implementation: "auto" takes the Helion kernels on a GPU and PyTorch elsewhere, in float64 and for
            n C = 1; "helion" and "pytorch" ask for one of them.

    Returns:
        mixes (..., M), float32 (float64 for float64 x); with prenorm (product (..., M), mean_square (...)).

    Numerical policy: all arithmetic in float32 (float64 for float64 x), also under autocast; dx is rounded
        once to the dtype of x, the gradients of fn and norm_weight once to theirs.  Bitwise reproducible, and
        a token's mixes and dx do not depend on the tokens around it, with any config.  The gradient of fn is
        a sum over tokens in a fixed order.  A token of zeros has mixes 0 and dx = r dmixes fn, r up to
        1 / sqrt(norm_eps).  Squares below 1.2e-38 lose bits as they underflow; the square of a value above
        1.8e19 is infinite, and r is 0 then.  docs/mhc.md describes the accumulation and its errors.

    Raises:
        TypeError: an argument is no floating-point tensor, a constant is no number or flag.
        ValueError: shapes that do not fit, more than 288 rows, a norm_eps out of range, an unknown option.
        NotImplementedError: implementation="helion" on a CPU, in float64 or for n C = 1; double backward.

    Source: Xie et al., mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880), section 4.2, and
        DeepSeek-V4's inference code.
    """
    implementation = check_implementation(implementation)
    check_tensors(x, fn, norm_weight)
    check_options(norm_eps, precision, eps_outside)
    check_flag("prenorm", prenorm)
    if prenorm:
        fn, serves = weighted(x, fn, norm_weight, implementation)
        return Prenorm(*torch_op.apply_prenorm(x, fn, precision, serves))
    return projected(x, fn, norm_weight, (float(norm_eps), eps_outside, precision), implementation)


def projected(x, fn, norm_weight, options, implementation) -> torch.Tensor:
    """hc_mixes of checked arguments; options are norm_eps, eps_outside and precision."""
    fn, serves = weighted(x, fn, norm_weight, implementation)
    mixes, _ = torch_op.apply(x, fn, *options, serves)
    return mixes


def weighted(x, fn, norm_weight, implementation) -> tuple[torch.Tensor, str]:
    """fn times the norm's weight, and the implementation that computes the call."""
    fn = with_weight(x, fn, norm_weight)
    return fn, implementation_for(implementation, "x", x, beyond_kernels(fn))


def with_weight(x, fn, norm_weight) -> torch.Tensor:
    """fn times the norm's weight."""
    if norm_weight is None:
        return fn
    wide = COMPUTING[x.dtype]
    return fn.to(wide) * norm_weight.to(wide)


def beyond_kernels(fn) -> Callable[[], str] | None:
    """A function that says which limit of the kernels a call exceeds; None if it exceeds none.

    An axis of one entry is read once for each place of its tile: on an H100 a product came out 8 times as
    large.
    """
    if fn.shape[1] > 1:
        return None
    return lambda: "the kernels take at least 2 entries a token, n C is 1"


def check_tensors(x, fn, norm_weight) -> None:
    """Raise unless fn and norm_weight fit the entries of x."""
    given = {"x": (x, "(..., n, C) or (..., n C)"), "fn": (fn, "(M, n C)")}
    if norm_weight is not None:
        given["norm_weight"] = norm_weight, "(n C,)"
    for name, (t, shape) in given.items():
        check_tensor(name, t, shape)
        check_same_device(name, t, "x", x)
    if fn.dim() != 2 or not 1 <= fn.shape[0] <= MOST_ROWS or fn.shape[1] == 0:
        raise ValueError(
            f"fn has shape {tuple(fn.shape)}; pass (M, n C): 1 to {MOST_ROWS} rows, n^2 + 2n for n streams "
            "or n for a head, each with a column for every entry of a token's streams"
        )
    size = fn.shape[1]
    merged = x.dim() >= 1 and x.shape[-1] == size
    if not merged and not (x.dim() >= 2 and x.shape[-2] * x.shape[-1] == size):
        fitting = [f"(M, {x.shape[-2] * x.shape[-1]}) if that is (..., n, C)"] if x.dim() > 1 else []
        fitting += [f"(M, {x.shape[-1]}) if it is (..., n C)"] if x.dim() else ["none: x has no dimension"]
        raise ValueError(
            f"fn has shape {tuple(fn.shape)}; for x of shape {tuple(x.shape)} pass {', '.join(fitting)}"
        )
    if norm_weight is not None and tuple(norm_weight.shape) != (size,):
        raise ValueError(
            f"norm_weight has shape {tuple(norm_weight.shape)}; for fn {tuple(fn.shape)} pass ({size},)"
        )


def check_options(norm_eps, precision, eps_outside) -> None:
    """Raise unless these are a positive number, a name and a flag."""
    check_norm_eps("norm_eps", norm_eps)
    check_option("precision", precision, PRECISIONS)
    check_flag("eps_outside", eps_outside)
