"""Trials of the dot compress kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from helion_sinkhorn.lab.dot_compress import budget as testing_dot_compress
from helion_sinkhorn.lab.dot_compress.workloads import DotWorkload
from helion_sinkhorn.lab.operator import Tensors, Trial, noise
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.ops.dot_compress import launch as dot_compress_launch
from helion_sinkhorn.ops.dot_compress.api import dot_compress
from helion_sinkhorn.ops.dot_compress.space import DotCall
from helion_sinkhorn.runtime.kernel import Choice

JUDGED_ELEMENTS = 16
"""Elements whose error is taken; a multiple of 16, as for matrices."""


def x_and_y(call: DotCall, batch: int, device: str) -> Tensors:
    return noise(device, call.dtype, (batch, call.m, call.d), (batch, call.m, call.k))


def x_and_b(call: DotCall, batch: int, device: str) -> Tensors:
    return noise(device, call.dtype, (batch, call.m, call.d), (batch, call.parts, call.d, call.k))


def gradients(call: DotCall, batch: int, device: str) -> Tensors:
    return noise(device, call.dtype, *[(batch, call.m, call.k), (batch, call.parts, call.d, call.k)] * 2)


def run_product(call: DotCall, choice: Choice, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    b = torch.empty((x.size(0), call.parts, call.d, call.k), dtype=x.dtype, device=x.device)
    dot_compress_launch.product(x, y, None, b, choice)
    return b


def run_apply(call: DotCall, choice: Choice, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty((x.size(0), call.m, call.k), dtype=x.dtype, device=x.device)
    dot_compress_launch.apply(x, b, out, choice)
    return out


def run_expand(
    call: DotCall, choice: Choice, grad: torch.Tensor, b: torch.Tensor, y: torch.Tensor, db: torch.Tensor
) -> torch.Tensor:
    dx = torch.empty((y.size(0), call.m, call.d), dtype=y.dtype, device=y.device)
    dot_compress_launch.expand(grad, y, b, db, dx, choice)
    return dx


def product_error(call: DotCall, choice: Choice, device: str) -> float:
    x, y = x_and_y(call, JUDGED_ELEMENTS, "cpu")
    found = run_product(call, choice, x.to(device), y.to(device)).double().sum(1)
    return worst_sum(found, [(x.mT, y)], x.dtype, call.parts)


def apply_error(call: DotCall, choice: Choice, device: str) -> float:
    x, b = x_and_b(call, JUDGED_ELEMENTS, "cpu")
    found = run_apply(call, choice, x.to(device), b.to(device))
    return worst_sum(found, [(x, b.double().sum(1))], x.dtype)


def expand_error(call: DotCall, choice: Choice, device: str) -> float:
    grad, b, y, db = gradients(call, JUDGED_ELEMENTS, "cpu")
    found = run_expand(call, choice, *(t.to(device) for t in (grad, b, y, db)))
    pairs = [(g, t.double().sum(1).mT) for g, t in ((grad, b), (y, db))]
    return worst_sum(found, pairs, y.dtype)


def worst_sum(found: torch.Tensor, pairs: list[Tensors], dtype: torch.dtype, parts: int = 1) -> float:
    """The largest error of a sum of products in units of its budget."""
    exact = testing_dot_compress.sum_of_products(pairs, dtype, parts)
    return worst(found, exact.value, exact.budget)


def kernel_calls(workload: DotWorkload) -> Iterator[tuple[str, Any]]:
    """(kernel, its call), one for each kernel that a workload runs."""
    call = DotCall(str(workload.dtype)[6:], workload.m, workload.d, workload.k, workload.parts)
    for name in ("dot_compress_product", "dot_compress_apply", "dot_compress_expand"):
        yield name, call


def run_call(workload: DotWorkload, device: str) -> None:
    """The launches of a call and its gradient: configs shrink with the batch."""
    x, y, z, grad = workload.make_inputs(device=device)
    _, b = dot_compress_launch.forward(x, y, z, workload.parts)
    dot_compress_launch.backward(grad, x, y, b)


def call_public(workload: DotWorkload, empty: Callable[..., torch.Tensor]) -> None:
    """Call the public function, for its checks, on tensors that `empty(*shape, dtype=...)` makes."""
    sizes = (workload.m, workload.d), (workload.m, workload.k), (workload.d, workload.k)
    x, y, z = (empty(workload.batch, *size, dtype=workload.dtype) for size in sizes)
    given = x, y, z if workload.has_z else None
    dot_compress(*given, precise_intermediate=workload.precise, implementation="helion")


TRIALS = {
    "dot_compress_product": Trial(x_and_y, run_product, product_error),
    "dot_compress_apply": Trial(x_and_b, run_apply, apply_error),
    "dot_compress_expand": Trial(gradients, run_expand, expand_error),
}
