"""quantize in PyTorch: what a CPU runs, and a GPU for float64 and groups that the kernel does not take."""

from __future__ import annotations

import torch

from helion_sinkhorn.runtime.pieces import COMPUTING

LARGEST = 448.0
"""The largest float8_e4m3fn."""
NOT_A_NUMBER = 255
"""The exponent field of float32's NaN and infinity, and e8m0's NaN."""


def forward(
    u: torch.Tensor, group: int, scales: str, layout: str, floor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(values, scales); see mhc.quantized.quantize."""
    parts = u.to(COMPUTING[u.dtype]).unflatten(-1, (u.size(-1) // group, group))
    largest = parts.abs().amax(-1).clamp(min=floor)
    exponents = None
    if scales == "e8m0":
        exponents, scale = _power_of_two(largest.float())
    else:
        scale = torch.where(largest.isinf(), torch.nan, largest / LARGEST).float()
    values = (parts / scale.to(parts.dtype).unsqueeze(-1)).to(torch.float8_e4m3fn).flatten(-2)
    if layout == "column":
        return values, _by_column(scale if exponents is None else _packed(exponents))
    if exponents is None:
        return values, scale
    return values, exponents.to(torch.uint8).view(torch.float8_e8m0fnu)


def _power_of_two(largest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest power of two that is at least largest / 448: its biased exponent, int32, and its float32.

    It is computed from the bits of a float32, since a logarithm may be wrong near a power of two.  448 is
    1.75 times 2^8.
    """
    bits = largest.view(torch.int32)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    biased = exponent - 8 + (mantissa > 0x600000).int()
    biased = torch.where(exponent == NOT_A_NUMBER, NOT_A_NUMBER, biased)
    power = (biased << 23).view(torch.float32)
    return biased, torch.where(biased == NOT_A_NUMBER, torch.nan, power)


def _packed(exponents: torch.Tensor) -> torch.Tensor:
    """Four groups to an int32, the first in the lowest byte."""
    missing = -exponents.size(-1) % 4
    first, second, third, fourth = (
        torch.nn.functional.pad(exponents, (0, missing)).unflatten(-1, (-1, 4)).unbind(-1)
    )
    return first | second << 8 | third << 16 | fourth << 24


def _by_column(scales: torch.Tensor) -> torch.Tensor:
    """The same (..., T, K) with tokens as neighbours, every group at a multiple of 4 tokens."""
    tokens = scales.size(-2)
    padded = torch.nn.functional.pad(scales.mT, (0, -tokens % 4))
    # a copy for one group too, whose strides would be those of scales by rows
    return padded.clone(memory_format=torch.contiguous_format)[..., :tokens].mT
