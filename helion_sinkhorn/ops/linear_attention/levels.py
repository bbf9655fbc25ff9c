"""Decays between steps as factors at most 1: the steps of a factor, and exponents that lose no digit."""

from __future__ import annotations

import torch

from helion_sinkhorn.runtime.device_math import LOG2E

LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
"""log 2 in two parts: the first has few bits, so that whole multiples of it are exact."""
TO_WHOLE = 1.5 * 2.0**23
"""A float32 this large has no fraction: adding and subtracting it rounds."""
LEAST_GATE, LEAST_EXPONENT = -1e4, -160.0
"""Smaller gates and exponents are replaced by these, whose exp is 0 too; -inf times 0 would be NaN."""


def ones(where):
    """A matrix of zeros and ones."""
    return torch.where(where, 1.0, 0.0).to(torch.bfloat16)


def exponent(gates, mask, single):
    """The sum of log decays, 0 outside of mask, as (whole, rest) in powers of two, or (w, w) if `single`.

    An error of an exponent is a relative error of the decay.  Whole numbers are added without error, and so
    is a single bfloat16 gate.
    """
    whole, rest = torch.where(mask, 0.0, 0.0), torch.where(mask, 0.0, 0.0)
    if single and gates:
        w = torch.where(mask, torch.clamp(gates[0].to(torch.float32), min=LEAST_EXPONENT), 0.0)
        return w, w
    for gate in gates:
        w = torch.clamp(gate.to(torch.float32), min=LEAST_GATE)
        n = (w * LOG2E + TO_WHOLE) - TO_WHOLE
        whole = whole + n
        rest = rest + (w - n * LN2_HIGH - n * LN2_LOW) * LOG2E
    return torch.where(mask, torch.clamp(whole, min=LEAST_EXPONENT), 0.0), torch.where(mask, rest, 0.0)


def near_middle(i, j, half):
    """Whether step j lies between row i and the middle of its block, where i counts in the right half."""
    return ((i ^ j) < half) & ((j <= i) == ((i & half) != 0))


def across_middle(i, j, half):
    """Whether row j is in the other half of the block of row i."""
    return ((i ^ j) & -half) == half
