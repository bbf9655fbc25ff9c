"""What quantize makes, and how its scales lie in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from helion_sinkhorn.ops.mhc.pre.quantized.space import GROUPS
from helion_sinkhorn.runtime.checks import type_of
from helion_sinkhorn.runtime.export import named_for_export
from helion_sinkhorn.runtime.views import strides_of

FLOOR = 1e-10
"""The least value of a group's largest entry, if the caller names none."""
Kind = tuple[int, str, str]
"""(group, scales, layout), as quantize takes them."""


class Quantized(NamedTuple):
    """The operand of a float8 matrix product."""

    values: torch.Tensor
    """(..., C), float8_e4m3fn."""
    scales: torch.Tensor
    """(..., C / G), or packed; u is about values times scales."""


named_for_export(Quantized)


def memory_of(shape: torch.Size, group: int, scales: str, layout: str) -> tuple[tuple[int, ...], torch.dtype]:
    """The shape and dtype of memory for the scales of u: (..., K), or by columns (..., K, T padded)."""
    *lead, columns = shape
    groups, is_power = columns // group, scales == "e8m0"
    if layout == "row":
        return (*lead, groups), torch.float8_e8m0fnu if is_power else torch.float32
    rows = (groups + 3) // 4 if is_power else groups
    return (*lead[:-1], rows, (lead[-1] + 3) // 4 * 4), torch.int32 if is_power else torch.float32


def wanted_of(shape: torch.Size, kind: Kind, name: str) -> dict[str, tuple[Any, ...]]:
    """What `check_out` wants of the values and scales of u, by their names in errors."""
    memory, dtype = memory_of(shape, *kind)
    of_scales = tuple(memory), dtype
    if kind[2] == "column":
        *lead, of_group, of_token = strides_of(torch.Size(memory))
        of_scales = (*shape[:-1], memory[-2]), dtype, (*lead, of_token, of_group)
    return {f"{name}.values": (tuple(shape), torch.float8_e4m3fn), f"{name}.scales": of_scales}


def check_quantized(name: str, out: object) -> None:
    """Raise TypeError unless out is Quantized, of tensors."""
    if not isinstance(out, Quantized):
        raise TypeError(
            f"{name} is {type_of(out)}; pass helion_sinkhorn.mhc.quantized.Quantized(values, scales)"
        )
    for field, t in out._asdict().items():
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{name}.{field} is {type_of(t)}; pass a torch.Tensor")


def kind_of(shape: torch.Size, out: Quantized) -> Kind:
    """The kind of results for u of this shape that has scales of this dtype, shape and layout.

    Raises:
        TypeError: of no kind are the scales of this dtype.
        ValueError: no group, or more than one, has as many scales.
    """
    scales, columns = out.scales, shape[-1]
    count = scales.size(-1) if scales.dim() else 0
    if scales.dtype == torch.int32:
        fit = [g for g in GROUPS if columns % g == 0 and (columns // g + 3) // 4 == count]
        if len(fit) == 1 and len(shape) > 1:
            return fit[0], "e8m0", "column"
        raise ValueError(
            f"out.quantized.scales has shape {tuple(scales.shape)} of int32, as groups of "
            f"{' and '.join(map(str, fit)) or 'no number of'} columns have for C = {columns}; pass (..., T, "
            f"C / 4G rounded up) for a G of {GROUPS} that alone has that shape, or call "
            "quantize(y, group=G, .., out=..) afterwards"
        )
    if scales.dtype not in (torch.float32, torch.float8_e8m0fnu):
        raise TypeError(
            f"out.quantized.scales has dtype {scales.dtype}; pass float32, float8_e8m0fnu or int32, such as "
            "the scales that quantize(y, ..) returns"
        )
    if not count or columns % count:
        raise ValueError(
            f"out.quantized.scales has shape {tuple(scales.shape)}; for C = {columns} pass (..., C / G), "
            "where C is a multiple of the group G"
        )
    # the stride of an axis of one says nothing
    in_row = scales.is_contiguous() if count == 1 else scales.stride(-1) == 1
    is_row = scales.dtype != torch.float32 or len(shape) < 2 or in_row
    return (
        columns // count,
        "float32" if scales.dtype == torch.float32 else "e8m0",
        "row" if is_row else "column",
    )
