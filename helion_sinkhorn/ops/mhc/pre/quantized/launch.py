"""From tensors to the launch of quantize: memory for its results, views, the choice of configs."""

from __future__ import annotations

import contextlib
import functools
import struct
from typing import Any

import torch

from helion_sinkhorn.ops.mhc.out import span
from helion_sinkhorn.ops.mhc.pre.quantized.layouts import FLOOR, Kind, Quantized, kind_of, memory_of
from helion_sinkhorn.ops.mhc.pre.quantized.space import QuantizeCall, default, space
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import Chosen, launch
from helion_sinkhorn.runtime.space import power_of_two
from helion_sinkhorn.runtime.views import flattened
from helion_sinkhorn.runtime.wanted import Some

NAME = "quantize_groups"
ENTRIES = 32
"""Entries that a thread rounds at a time of a row that its program has made."""


def has_cast(chosen: Chosen) -> bool:
    """Whether the device rounds to e4m3 by an instruction whose results are those of PyTorch."""
    return chosen.reciprocal == "ptx" and int(chosen.device.arch[2:]) >= 89


def facts(chosen: Chosen, call: QuantizeCall, *numbers: int) -> tuple[Any, ...]:
    return *numbers, *form_of(chosen, call.columns, (call.group, call.scales, call.layout))


def form_of(chosen: Chosen, columns: int, kind: Kind) -> tuple[Any, ...]:
    """The constants of quantize_groups."""
    group, scales, layout = kind
    return columns // group, scales == "e8m0", layout == "column", has_cast(chosen), chosen.interpret


def form_in_row(chosen: Chosen, columns: int, kind: Kind | None) -> tuple[Any, ...] | None:
    """The constants by which a program rounds the row that it has made, if it does."""
    if kind is None:
        return None
    threads = dict(chosen.choice.config)["num_warps"] * chosen.device.warp_size
    step = min(power_of_two(columns // kind[0]), max(1, threads * ENTRIES // kind[0]))
    return step, bits_of(FLOOR), form_of(chosen, columns, kind)


KERNELS = {
    NAME: Kernel(
        NAME,
        f"helion_sinkhorn.ops.mhc.pre.quantized.kernels:{NAME}",
        QuantizeCall,
        default,
        space,
        facts,
        traits=frozenset({"norms"}),
        numbers=2,
    )
}


@functools.lru_cache(maxsize=4096)
def call_for(dtype: torch.dtype, columns: int, group: int, scales: str, layout: str) -> QuantizeCall:
    """What the config of a call is chosen for."""
    return QuantizeCall(str(dtype)[6:], columns, group, scales, layout)


@functools.lru_cache(maxsize=64)
def bits_of(number: float) -> int:
    """The bits of a float32."""
    return struct.unpack("i", struct.pack("f", number))[0]


def results(u: torch.Tensor, group: int, scales: str, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for (values, scales (..., T, K))."""
    shape, dtype = memory_of(u.shape, group, scales, layout)
    # the kernel writes a byte for each group, and not those that the last int32 lacks
    make = u.new_zeros if dtype == torch.int32 and u.size(-1) // group % 4 else u.new_empty
    made = make(shape, dtype=dtype)
    values = torch.empty(u.shape, dtype=torch.float8_e4m3fn, device=u.device)
    return values, made if layout == "row" else made.narrow(-1, 0, u.size(-2)).mT


def forward(
    u: torch.Tensor,
    group: int,
    scales: str,
    layout: str,
    floor: float,
    choice: Choice | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(values, scales), or `out`; the contract is mhc.quantized.quantize's."""
    values, made = results(u, group, scales, layout) if out is None else out
    if out is not None:
        clear(made, u.size(-1) // group)
    call = call_for(u.dtype, u.size(-1), group, scales, layout)
    numbers = bits_of(floor), u.size(-2) if layout == "column" else 1
    tokens = u.numel() // u.size(-1)
    operands = operands_of(flattened(u, 1), group, values, made)
    launch(KERNELS[NAME], call, operands, *numbers, batch=tokens, choice=choice)
    return values, made


def clear(scales: torch.Tensor, groups: int) -> None:
    """Zero packed scales of which the kernel writes not every byte."""
    if scales.dtype == torch.int32 and groups % 4:
        # not what lies between the entries, which may be another call's; kernels write inference tensors
        # outside inference mode too
        with torch.inference_mode() if scales.is_inference() else contextlib.nullcontext():
            scales.zero_()


def operands_of(
    u: torch.Tensor, group: int, values: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """u and the codes in groups, and the scales as they lie in memory, float32 or bytes."""
    flat = scales.as_strided((span(scales),), (1,))
    if scales.dtype != torch.float32:
        flat = flat.view(torch.uint8)
    return u.view(-1, group), values.view(torch.uint8).view(-1, group), flat


def write(y: torch.Tensor, out: Quantized | None) -> None:
    """Round y into `out`, if there is one."""
    if out is not None:
        forward(y, *kind_of(y.shape, out), FLOOR, out=out)


def beside(y: torch.Tensor, out: Quantized | None) -> tuple[Kind | None, int, tuple[Some, Some, Some]]:
    """What a kernel that makes y, contiguous, takes to round it too, or None: the kind, how many tokens are
    neighbours, and the operands.
    """
    if out is None:
        return None, 1, (None, None, None)
    kind = kind_of(y.shape, out)
    clear(out.scales, y.size(-1) // kind[0])
    return kind, y.size(-2) if kind[2] == "column" else 1, operands_of(y, kind[0], *out)
