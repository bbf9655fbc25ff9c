"""From tensors to the launch of quantize: memory for its results, views, the choice of configs."""

from __future__ import annotations

import functools
import struct
from typing import Any

import torch

from helion_sinkhorn.ops.mhc.out import span
from helion_sinkhorn.ops.mhc.pre.quantized.layouts import memory_of
from helion_sinkhorn.ops.mhc.pre.quantized.space import QuantizeCall, default, space
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import Chosen, launch
from helion_sinkhorn.runtime.views import flattened

NAME = "quantize_groups"


def has_cast(chosen: Chosen) -> bool:
    """Whether the device rounds to e4m3 by an instruction whose results are those of PyTorch."""
    return chosen.reciprocal == "ptx" and int(chosen.device.arch[2:]) >= 89


def facts(chosen: Chosen, call: QuantizeCall, *numbers: int) -> tuple[Any, ...]:
    forms = call.scales == "e8m0", call.layout == "column"
    return *numbers, call.columns // call.group, *forms, has_cast(chosen), chosen.interpret


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
    rows = flattened(u, 1).view(-1, group)
    codes = values.view(torch.uint8).view(-1, group)
    flat = made.as_strided((span(made),), (1,))
    if scales == "e8m0":
        flat = flat.view(torch.uint8)
        if out is not None and made.dtype == torch.int32 and u.size(-1) // group % 4:
            # not what lies between the entries, which may be another call's
            made.zero_()
    call = call_for(u.dtype, u.size(-1), group, scales, layout)
    numbers = bits_of(floor), u.size(-2) if layout == "column" else 1
    tokens = u.numel() // u.size(-1)
    launch(KERNELS[NAME], call, (rows, codes, flat), *numbers, batch=tokens, choice=choice)
    return values, made
