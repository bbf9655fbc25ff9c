"""EVIDENCE of quantize: scales and values bit for bit, whatever computes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from helion_sinkhorn.lab.evidence import Alone, Choices, Evidence, Results, Tensors, all_inputs
from helion_sinkhorn.lab.pre.quantized.workloads import QuantizeWorkload
from helion_sinkhorn.lab.row import TRIED
from helion_sinkhorn.lab.truth import Truth
from helion_sinkhorn.mhc.quantized import quantize
from helion_sinkhorn.ops.mhc.pre.quantized import eager, launch
from helion_sinkhorn.ops.mhc.pre.quantized.space import QuantizeCall
from helion_sinkhorn.runtime.kernel import Choice

RESULTS = "values", "scales"


def kernel_calls(workload: QuantizeWorkload) -> Iterator[tuple[str, Any]]:
    how = workload.group, workload.scales, workload.layout
    yield launch.NAME, launch.call_for(workload.dtype, workload.c, *how)


def of_call(kernel: str, call: QuantizeCall, tokens: int) -> QuantizeWorkload:
    options = {"group": call.group, "scales": call.scales, "layout": call.layout}
    return QuantizeWorkload(*TRIED, call.columns, tokens, dtype=getattr(torch, call.dtype), **options)


def exact(workload: QuantizeWorkload, u: torch.Tensor) -> Results:
    """The definition in float64, with its two roundings to float32: of the scale and of the quotient.

    Both are those of float32 arithmetic: a quotient of two float32 numbers is never so near to the middle of
    two others that float64 would round it there first.
    """
    parts = u.double().unflatten(-1, (-1, workload.group))
    scale = scale_of(workload, parts.abs().amax(-1))
    return {"values": nearest((parts / scale.unsqueeze(-1)).float()).flatten(-2), "scales": scale}


def scale_of(workload: QuantizeWorkload, largest: torch.Tensor) -> torch.Tensor:
    """The scale of groups by their largest entries."""
    least = largest.clamp(min=torch.tensor(workload.floor).item()) / 448
    if workload.scales == "e8m0":
        mantissa, exponent = torch.frexp(least)
        scale = torch.exp2(exponent.double() - (mantissa == 0.5).double())
    else:
        scale = least.float().double()
    return torch.where(largest.isfinite(), scale, torch.nan)


def nearest(q: torch.Tensor) -> torch.Tensor:
    """The e4m3 next to each entry, ties to even."""
    unit = unit_of(q)
    return (q.double() / unit).round() * unit


def unit_of(q: torch.Tensor) -> torch.Tensor:
    """The distance between the e4m3 around each entry: 2^-3 of a binade, and 2^-9 below 2^-6."""
    return torch.exp2(torch.frexp(q.double().abs().clamp(min=2.0**-6)).exponent.double() - 4)


def truths(workload: QuantizeWorkload, u: torch.Tensor) -> dict[str, Truth]:
    """Nothing may differ: no result is a sum, and each rounding is given."""
    return {
        name: Truth.of(t, torch.zeros_like(t), torch.float32, gradient=False)
        for name, t in exact(workload, u).items()
    }


def run(workload: QuantizeWorkload, choices: Choices | None, of: Collection[str], u) -> Results:
    """Both in float32, which has them exactly."""
    given = u, workload.group, workload.scales, workload.layout, workload.floor
    module, chosen = (eager, {}) if choices is None else (launch, {"choice": choices.get(launch.NAME)})
    results = module.forward(*given, **chosen)
    return {name: t for name, t in zip(RESULTS, map(unpacked(workload), results), strict=True) if name in of}


def unpacked(workload: QuantizeWorkload) -> Callable[[torch.Tensor], torch.Tensor]:
    """Makes contiguous float32 of values, and of scales, which may be four to an int32 and lie by columns."""

    def change(t: torch.Tensor) -> torch.Tensor:
        if t.dtype != torch.int32:
            return t.float().contiguous()
        exponents = torch.stack([t >> shift & 255 for shift in (0, 8, 16, 24)], -1).flatten(-2)
        powers = (exponents << 23).view(torch.float32)
        scales = torch.where(exponents == 255, torch.nan, powers)
        return scales[..., : workload.c // workload.group].contiguous()

    return change


def call_public(workload: QuantizeWorkload, empty: Callable[..., torch.Tensor]) -> None:
    u = empty(workload.batch, workload.tokens, workload.c, dtype=workload.dtype)
    quantize(u, implementation="helion", **workload.options)


def operands(call: QuantizeCall, tokens: int, device: str) -> Tensors:
    return of_call(launch.NAME, call, tokens).make_inputs(device=device, there=True)


def run_alone(call: QuantizeCall, choice: Choice, u: torch.Tensor) -> Tensors:
    """The results as they are, without the conversions of `run`."""
    return launch.forward(u, call.group, call.scales, call.layout, 1e-10, choice)


EVIDENCE = Evidence(
    "quantize",
    QuantizeWorkload,
    launch.KERNELS,
    {launch.NAME: RESULTS},
    kernel_calls,
    of_call,
    lambda workload: RESULTS,
    all_inputs,
    truths,
    run,
    call_public,
    same_bits=frozenset(RESULTS),
    alone={launch.NAME: Alone(operands, run_alone)},
    fixed=("tokens", "floor"),
)
