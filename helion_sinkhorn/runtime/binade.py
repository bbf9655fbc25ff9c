"""Powers of two that divide and multiply a tensor without rounding, in kernels and PyTorch alike."""

from __future__ import annotations

import torch

FORMATS = {torch.float32: (torch.int32, 8, 23), torch.float64: (torch.int64, 11, 52)}
"""By dtype: the integer dtype of the same width, the bits of the exponent and those of the mantissa."""


def binade(x):
    """(s, 1 / s) for x >= 0: the largest power of two s <= x, bounded so that both are normal and finite."""
    integer, exponent_bits, mantissa_bits = FORMATS[x.dtype]
    one, most = 1 << mantissa_bits, (1 << exponent_bits) - 1 << mantissa_bits
    bits = (x.view(integer) & most).clamp(one, most - 2 * one)
    return bits.view(x.dtype), (most - one - bits).view(x.dtype)
