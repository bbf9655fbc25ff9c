"""quantize(u): the input of a sublayer in float8, with a scale for each group of columns."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.mhc.out import check_out, count_change, written
from helion_sinkhorn.ops.mhc.pre.quantized import eager, torch_op
from helion_sinkhorn.ops.mhc.pre.quantized.eager import LARGEST
from helion_sinkhorn.ops.mhc.pre.quantized.layouts import Quantized, check_quantized, wanted_of
from helion_sinkhorn.ops.mhc.pre.quantized.space import GROUPS
from helion_sinkhorn.runtime.checks import (
    check_finite,
    check_implementation,
    check_int,
    check_option,
    check_tensor,
    implementation_for,
)

SCALES = ("float32", "e8m0")
LAYOUTS = ("row", "column")
LEAST_FLOOR = 1e-30
"""With a smaller floor a scale might be near float32's smallest normal number, which some devices flush."""
ACCEPTED_FLOOR = f"a float from {LEAST_FLOOR} to {LARGEST}"
"""Compilers that make sizes symbols cannot format numbers."""


def quantize(
    u: torch.Tensor,
    *,
    group: int = 128,
    scales: str = "float32",
    layout: str = "row",
    floor: float = 1e-10,
    out: Quantized | None = None,
    implementation: str = "auto",
) -> Quantized:
    """Round the input of a sublayer to float8 e4m3, with a scale for each group of G columns of a token.

        a_g = max(max_c |u_c|, floor) of group g
        s_g = a_g / 448,  or with scales="e8m0" the smallest power of two that is not below it
        values_c = e4m3(u_c / s_g)
    u is the y that `hc_pre`, `hc_site` and `hc_boundary` return, normalised if they have a norm:

        y = hc_pre(x, pre, y_norm_weight=weight)
        values, scales = quantize(y, group=32, scales="e8m0", layout="column")
    For inference DeepSeek-V4 takes G = 128 and scales of either kind, V4.1 takes G = 32 and e8m0 (MXFP8).  A
    column takes 1 + 4 / 128 bytes with G = 128 and float32, and 1 + 1 / 32 with G = 32 and e8m0.

    Args:
        u: (..., C), any floating dtype; C is a multiple of G.
        group: G.
        scales: "float32" or "e8m0", a byte with the exponent of a power of two.
        layout: "row" for scales (..., C / G), contiguous, float32 or float8_e8m0fnu.  "column", for u (...,
            T, C), is DeepGEMM's layout: the tokens of a group are neighbours, and each group starts at a
            multiple of 4 tokens, so that strides are (1, T rounded up to 4).  e8m0 scales are then packed,
            four groups to an int32 with the first in the lowest byte: (..., T, C / 4G rounded up); missing
            groups are 0.
        floor: the least value of a group's largest entry, 1e-30 to 448; vLLM and SGLang use 1e-10, DeepGEMM
            1e-4.
        out: Quantized(values, scales), tensors of these shapes, dtypes and strides that the results are
            written into; None for new ones.
        implementation: "auto" takes the Helion kernel on a GPU for G = 16, 32, 64, 128 or 256, and PyTorch
            elsewhere and in float64; "helion" and "pytorch" ask for one of them.

    Returns:
        values (..., C), contiguous, and scales.

    Numerical policy: float32 (float64 for float64 u): s and u / s are rounded once each, then to the nearest
        e4m3, ties to even; with e8m0 the division is exact.  The largest entry of a group is 448 or close to
        it, so nothing saturates.  With e8m0 the bits are the same as from DeepGEMM's PyTorch function
        `per_token_cast_to_fp8` for the same floor; with float32 that function multiplies by a rounded 1 / s,
        and one value in 2,000 differs.  A group with a NaN or an infinity has scale NaN and values NaN.
        The kernel and PyTorch give equal bits, and a token's results do not depend on the tokens around
        it.  torch.compile for a CPU supports only the packed int32 and not float8_e8m0fnu.

    Raises:
        TypeError: u is no floating-point tensor, group no int, floor no number, out no Quantized.
        ValueError: C is no multiple of G, an option is unknown or out of range, or layout="column" and u has
            one dimension; out does not fit or overlaps u.
        RuntimeError: u requires a gradient, and gradients are enabled; quantize has none.
        NotImplementedError: implementation="helion" on a CPU, in float64, or for another G.

    Source: OCP Microscaling Formats (MX) 1.0 for e8m0.  Its scale is the largest power of two not above
        max|u| / 256 and lets entries saturate; the scale here is DeepSeek's.
    """
    implementation = check_implementation(implementation)
    check_tensor("u", u, "(..., C)")
    group = check_int("group", group, 1)
    check_option("scales", scales, SCALES)
    check_option("layout", layout, LAYOUTS)
    check_finite("floor", floor, ACCEPTED_FLOOR)
    if not LEAST_FLOOR <= floor <= LARGEST:
        raise ValueError(f"floor is {float(floor)}; pass {ACCEPTED_FLOOR}")
    axes, shape = (1, "(..., C)") if layout == "row" else (2, "(..., T, C)")
    if u.dim() < axes or u.size(-1) % group:
        raise ValueError(
            f"u has shape {tuple(u.shape)}; for layout={layout!r} and group={group} pass {shape}, C a "
            f"multiple of {group}"
        )
    if u.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            "u requires a gradient, and rounding to float8 has none; quantize for inference, under "
            "torch.no_grad()"
        )
    beyond = (
        None if group in GROUPS else lambda: f"the kernel takes groups of {GROUPS} columns, group is {group}"
    )
    given = u, group, scales, layout, float(floor)
    direct = out is not None and _may_write(out, *given[:4])
    if implementation_for(implementation, "u", u, beyond) == "pytorch":
        rounded = eager.forward(*given)
    elif direct:
        count_change(*out)
        rounded = torch_op.forward(*given, out=out)
    else:
        rounded = torch_op.call(*given)
    return Quantized(*(rounded if out is None else map(written, rounded, out)))


def _may_write(out: Quantized, u: torch.Tensor, group: int, scales: str, layout: str) -> bool:
    """Whether the kernel may write into `out`; raise as `check_out` does."""
    check_quantized("out", out)
    wanted = wanted_of(u.shape, (group, scales, layout), "out")
    return check_out({f"out.{name}": t for name, t in out._asdict().items()}, wanted, u, {}, {"u": u}, "u")
