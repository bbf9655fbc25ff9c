"""How the scales of quantize lie in memory."""

from __future__ import annotations

import torch


def memory_of(shape: torch.Size, group: int, scales: str, layout: str) -> tuple[tuple[int, ...], torch.dtype]:
    """The shape and dtype of memory for the scales of u: (..., K), or by columns (..., K, T padded)."""
    *lead, columns = shape
    groups, is_power = columns // group, scales == "e8m0"
    if layout == "row":
        return (*lead, groups), torch.float8_e8m0fnu if is_power else torch.float32
    rows = (groups + 3) // 4 if is_power else groups
    return (*lead[:-1], rows, (lead[-1] + 3) // 4 * 4), torch.int32 if is_power else torch.float32
