"""dot_compress as the gate judges it: out, dx, dy and dz within what their rounding points allow."""

from __future__ import annotations

import functools

import torch

from ci.gate import choices, gate
from helion_sinkhorn.lab.dot_compress import budget as testing_dot_compress
from helion_sinkhorn.lab.dot_compress.workloads import DotWorkload
from helion_sinkhorn.ops.dot_compress import eager as dot_compress_eager
from helion_sinkhorn.runtime.launch import device_of

JUDGED = 2
"""Elements: each has a hundred thousand entries and more."""
MARGIN = 1.05
"""Factor of the deviation: that of 10^4 independent roundings is known to a hundredth."""
OF_PARTS = 2.0**-21
"""What three products of TF32 parts may lose of a float32 product, all to one side."""
RESULTS = ("out", "dx", "dy", "dz")
COMPUTES = {
    "dot_compress_product": ("out", "dz"),
    "dot_compress_apply": ("out", "dy"),
    "dot_compress_expand": ("dx",),
}
"""The results in which an error of a kernel shows."""


def inputs(workload: DotWorkload, steps: int) -> tuple[torch.Tensor, ...]:
    """x, y, the upstream gradient, and z where the call has one."""
    x, y, z, grad = workload.make_inputs()
    return tuple(t[:JUDGED] for t in (x, y, grad, z) if t is not None)


def truths(workload: DotWorkload, x, y, grad, z=None) -> dict[str, gate.Truth]:
    """The equations in float64."""
    exact = testing_dot_compress.exact(x, y, z, grad, workload.parts)
    return {
        name: gate.Truth(
            e.value, e.budget, MARGIN * e.spread, gate.largest(e.value), leaning(e, workload.dtype), len(x),
            # the roundings of a row of b reach all entries of a column
            (-2,), workload.dtype,
        )
        for name, e in exact.items()
    }  # fmt: skip


def leaning(e: testing_dot_compress.Exact, dtype: torch.dtype) -> float:
    """How far a float32 result leans to zero where each product is made of parts, in spreads."""
    lost = OF_PARTS * e.value.abs() / (MARGIN * e.spread)
    return lost.mean().item() if dtype == torch.float32 else 0.0


def candidates(workload: DotWorkload, x, y, grad, z=None) -> list[gate.Candidate]:
    """The three kernels, each config of one with what is served of the others; on a CPU the CPU path."""
    if not x.is_cuda:
        return choices.on_cpu(RESULTS, on_cpu, workload.parts)
    from helion_sinkhorn.ops.dot_compress import launch as dot_compress_launch

    call = dot_compress_launch.call_of(x, y, workload.parts)
    return choices.candidates(
        COMPUTES, call, x.size(0), device_of(x),
        lambda name, choice: functools.partial(on_gpu, workload.parts, name, {choice.kernel: choice}),
    )  # fmt: skip


def on_cpu(parts: int, name: str, x, y, grad, z=None) -> torch.Tensor:
    out, b = dot_compress_eager.forward(x, y, z, parts)
    dx, dy, db = dot_compress_eager.backward(grad, x, y, b)
    return {"out": out, "dx": dx, "dy": dy, "dz": db[:, 0]}[name]


def on_gpu(parts: int, name: str, chosen: dict[str, object], x, y, grad, z=None) -> torch.Tensor:
    from helion_sinkhorn.ops.dot_compress import launch as dot_compress_launch

    out, b = dot_compress_launch.forward(x, y, z, parts, chosen)
    dx, dy, db = dot_compress_launch.backward(grad, x, y, b, chosen)
    return {"out": out, "dx": dx, "dy": dy, "dz": db[:, 0]}[name]
