"""quantize(u): the input of a sublayer in float8, with a scale for each group of columns."""

from __future__ import annotations

from typing import NamedTuple

import torch

from helion_sinkhorn.runtime.checks import check_finite, check_int, check_option, check_tensor
from helion_sinkhorn.runtime.pieces import computing

LARGEST = 448.0
"""The largest float8_e4m3fn."""
SCALES = ("float32", "e8m0")
LAYOUTS = ("row", "column")
LEAST_FLOOR = 1e-30
"""With a smaller floor a scale might be near float32's smallest normal number, which some devices flush."""
NOT_A_NUMBER = 255
"""The exponent field of float32's NaN and infinity, and e8m0's NaN."""


class Quantized(NamedTuple):
    """The operand of a float8 matrix product."""

    values: torch.Tensor
    """(..., C), float8_e4m3fn."""
    scales: torch.Tensor
    """(..., C / G), or packed; u is about values times scales."""


def quantize(
    u: torch.Tensor, *, group: int = 128, scales: str = "float32", layout: str = "row", floor: float = 1e-10
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

    Returns:
        values (..., C), contiguous, and scales.

    Numerical policy: float32 (float64 for float64 u): s and u / s are rounded once each, then to the nearest
        e4m3, ties to even; with e8m0 the division is exact.  The largest entry of a group is 448 or close to
        it, so nothing saturates.  With e8m0 the bits are those of DeepGEMM's PyTorch function
        `per_token_cast_to_fp8` for the same floor; with float32 that function multiplies by a rounded 1 / s,
        and one value in 2,000 differs.  A group with a NaN or an infinity has scale NaN and values NaN.
        PyTorch computes it on every device, with three or more kernels on a GPU; torch.compile makes fewer,
        but on a CPU it supports only the packed int32 and not float8_e8m0fnu.  A token's results do not
        depend on the tokens around it.

    Raises:
        TypeError: u is no floating-point tensor, group no int, floor no number.
        ValueError: C is no multiple of G, an option is unknown or out of range, or layout="column" and u has
            one dimension.
        RuntimeError: u requires a gradient, and gradients are enabled; quantize has none.

    Source: OCP Microscaling Formats (MX) 1.0 for e8m0.  Its scale is the largest power of two not above
        max|u| / 256 and lets entries saturate; the scale here is DeepSeek's.
    """
    check_tensor("u", u, "(..., C)")
    group = check_int("group", group, 1)
    check_option("scales", scales, SCALES)
    check_option("layout", layout, LAYOUTS)
    check_finite("floor", floor, f"a float from {LEAST_FLOOR} to {LARGEST}")
    if not LEAST_FLOOR <= floor <= LARGEST:
        raise ValueError(f"floor is {float(floor)}; pass a float from {LEAST_FLOOR} to {LARGEST}")
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
    parts = u.to(computing(u.dtype)).unflatten(-1, (u.size(-1) // group, group))
    largest = parts.abs().amax(-1).clamp(min=floor)
    exponents = None
    if scales == "e8m0":
        exponents, scale = _power_of_two(largest.float())
    else:
        scale = torch.where(largest.isinf(), torch.nan, largest / LARGEST).float()
    values = (parts / scale.to(parts.dtype).unsqueeze(-1)).to(torch.float8_e4m3fn).flatten(-2)
    if layout == "column":
        return Quantized(values, _by_column(scale if exponents is None else _packed(exponents)))
    if exponents is None:
        return Quantized(values, scale)
    return Quantized(values, exponents.to(torch.uint8).view(torch.float8_e8m0fnu))


def _power_of_two(largest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest power of two that is at least largest / 448: its biased exponent, int32, and its float32.

    It is computed from the bits of a float32, since a logarithm may be wrong near a power of two.  448 is
    1.75 times 2^8.
    """
    bits = largest.view(torch.int32)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    found = exponent - 8 + (mantissa > 0x600000).int()
    found = torch.where(exponent == NOT_A_NUMBER, NOT_A_NUMBER, found)
    power = (found << 23).view(torch.float32)
    return found, torch.where(found == NOT_A_NUMBER, torch.nan, power)


def _packed(exponents: torch.Tensor) -> torch.Tensor:
    """Exponents packed four groups to an int32, with the first in the lowest byte."""
    missing = -exponents.size(-1) % 4
    first, second, third, fourth = (
        torch.nn.functional.pad(exponents, (0, missing)).unflatten(-1, (-1, 4)).unbind(-1)
    )
    return first | second << 8 | third << 16 | fourth << 24


def _by_column(scales: torch.Tensor) -> torch.Tensor:
    """Scales (..., T, K) with tokens as neighbours in memory, and every group at a multiple of 4 tokens."""
    tokens = scales.size(-2)
    padded = torch.nn.functional.pad(scales.mT, (0, -tokens % 4))
    return padded.contiguous()[..., :tokens].mT
