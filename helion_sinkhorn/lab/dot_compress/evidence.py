"""EVIDENCE of dot compress: out, dx, dy and dz within what their rounding points allow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from helion_sinkhorn.lab.dot_compress import budget
from helion_sinkhorn.lab.dot_compress.workloads import DotWorkload
from helion_sinkhorn.lab.draws import noise
from helion_sinkhorn.lab.evidence import EVERY_STEP, Alone, Choices, Evidence, Results, Tensors
from helion_sinkhorn.lab.truth import Truth, largest
from helion_sinkhorn.ops.dot_compress import eager, launch
from helion_sinkhorn.ops.dot_compress.api import dot_compress
from helion_sinkhorn.ops.dot_compress.space import DotCall
from helion_sinkhorn.runtime.kernel import Choice

JUDGED = 2
"""Elements of a workload that are tested; each has at least a hundred thousand entries."""
MARGIN = 1.05
"""Factor of the deviation, since that of 10^4 independent roundings is known to a hundredth."""
OF_PARTS = 2.0**-21
"""The most that three products of TF32 parts may lose of a float32 product, all to one side."""
RESULTS = ("out", "dx", "dy", "dz")


def kernel_calls(workload: DotWorkload) -> Iterator[tuple[str, Any]]:
    call = DotCall(str(workload.dtype)[6:], workload.m, workload.d, workload.k, workload.parts)
    return ((kernel, call) for kernel in launch.KERNELS)


def of_call(kernel: str, call: DotCall, batch: int) -> DotWorkload:
    sizes, dtype = (call.m, call.d, call.k), getattr(torch, call.dtype)
    return DotWorkload("tried", batch, frozenset(), "a trial", *sizes, dtype, precise=call.parts == 2)


def inputs(workload: DotWorkload, steps: int, **drawn: Any) -> Tensors:
    """x, y, the upstream gradient, and z where the call has one."""
    x, y, z, grad = workload.make_inputs(**drawn)
    judged = workload.batch if steps == EVERY_STEP else JUDGED
    return tuple(t[:judged] for t in (x, y, grad, z) if t is not None)


def truths(workload: DotWorkload, x, y, grad, z=None) -> dict[str, Truth]:
    """The equations in float64."""
    exact = budget.exact(x, y, z, grad, workload.parts)
    # terms of the two sums through which a result goes, b or db and its own
    m, d, k = workload.m, workload.d, workload.k
    terms = {"out": m + d, "dx": m + 2 * k, "dy": m + d, "dz": m}
    return {
        name: Truth(
            e.value, e.budget, MARGIN * e.spread, largest(e.value),
            leaning(e, workload.dtype, terms[name]), len(x),
            # the roundings of a row of b reach all entries of a column
            (-2,), workload.dtype,
        )
        for name, e in exact.items()
    }  # fmt: skip


def leaning(e: budget.Exact, dtype: torch.dtype, terms: int) -> float:
    """How far a result of sums of so many terms leans to zero, in spreads.

    In float32 each product is made of parts.  In narrow dtypes a matrix unit truncates each partial sum by
    CUT / 2 on average, at most every STEP terms; a partial sum of k of n terms has on average k / n of the
    value.
    """
    lost = OF_PARTS if dtype == torch.float32 else budget.CUT / (4 * budget.STEP) * terms
    return (lost * e.value.abs() / (MARGIN * e.spread)).mean().item()


def run(workload: DotWorkload, choices: Choices | None, of: Collection[str], x, y, grad, z=None) -> Results:
    module, chosen = (eager, {}) if choices is None else (launch, {"choices": choices})
    out, b = module.forward(x, y, z, workload.parts, **chosen)
    results = {"out": out}
    if {*of} - {"out"}:
        dx, dy, db = module.backward(grad, x, y, b, **chosen)
        results |= {"dx": dx, "dy": dy, "dz": db[:, 0]}
    return {name: results[name] for name in of}


def run_product(call: DotCall, choice: Choice, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    b = torch.empty((x.size(0), call.parts, call.d, call.k), dtype=x.dtype, device=x.device)
    launch.product(x, y, None, b, choice)
    return b


def run_apply(call: DotCall, choice: Choice, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty((x.size(0), call.m, call.k), dtype=x.dtype, device=x.device)
    launch.apply(x, b, out, choice)
    return out


def run_expand(call: DotCall, choice: Choice, grad, y, b, db) -> torch.Tensor:
    dx = torch.empty((y.size(0), call.m, call.d), dtype=y.dtype, device=y.device)
    launch.expand(grad, y, b, db, dx, choice)
    return dx


def operands(call: DotCall, batch: int, device: str, *names: str) -> Tensors:
    """What a kernel reads, by the names of its sizes."""
    sizes = {"x": (call.m, call.d), "y": (call.m, call.k), "b": (call.parts, call.d, call.k)}
    return noise(device, call.dtype, *((batch, *sizes[name]) for name in names))


def run_call(workload: DotWorkload, device: str) -> None:
    """The launches of a call and its gradient: configs shrink with the batch."""
    x, y, z, grad = workload.make_inputs(device=device)
    _, b = launch.forward(x, y, z, workload.parts)
    launch.backward(grad, x, y, b)


def call_public(workload: DotWorkload, empty: Callable[..., torch.Tensor]) -> None:
    sizes = (workload.m, workload.d), (workload.m, workload.k), (workload.d, workload.k)
    x, y, z = (empty(workload.batch, *size, dtype=workload.dtype) for size in sizes)
    given = x, y, z if workload.has_z else None
    dot_compress(*given, precise_intermediate=workload.precise, implementation="helion")


EVIDENCE = Evidence(
    "dot_compress",
    DotWorkload,
    launch.KERNELS,
    {
        "dot_compress_product": ("out", "dz"),
        "dot_compress_apply": ("out", "dy"),
        "dot_compress_expand": ("dx",),
    },
    kernel_calls,
    of_call,
    lambda workload: RESULTS,
    inputs,
    truths,
    run,
    call_public,
    alone={
        f"dot_compress_{kernel}": Alone(lambda *of, names=names: operands(*of, *names), made)
        for kernel, names, made in (
            ("product", "xy", run_product), ("apply", "xb", run_apply), ("expand", "yybb", run_expand),
        )
    },
    call=run_call,
)  # fmt: skip
