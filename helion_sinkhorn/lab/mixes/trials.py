"""Trials of the hc_mixes kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from helion_sinkhorn.lab.mixes.budget import error_budget, exact
from helion_sinkhorn.lab.mixes.workloads import MixesWorkload
from helion_sinkhorn.lab.operator import Tensors, Trial, noise
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.ops.mhc.mixes import launch
from helion_sinkhorn.ops.mhc.mixes.api import hc_mixes
from helion_sinkhorn.ops.mhc.mixes.space import CHUNK, MixesCall
from helion_sinkhorn.runtime.kernel import Choice

JUDGED_TOKENS = 80
NORM_EPS = 1e-6


def x_and_fn(call: MixesCall, batch: int, device: str) -> Tensors:
    (x,) = noise(device, call.dtype, (batch, call.columns))
    return x, *noise(device, "float32", (call.m, call.columns))


def fn_alone(call: MixesCall, batch: int, device: str) -> Tensors:
    return noise(device, "float32", (call.m, call.columns))


def x_and_parts(call: MixesCall, batch: int, device: str) -> Tensors:
    (x,) = noise(device, call.dtype, (batch, call.columns))
    return x, *noise(device, "bfloat16", (call.m, call.parts, call.columns))


def chunks(call: MixesCall, batch: int, device: str) -> Tensors:
    splits = -(-call.columns // CHUNK)
    made, squares = noise(device, "float32", (batch, splits, call.m), (batch, splits))
    return made, squares * squares


def mixes_and_gradient(call: MixesCall, batch: int, device: str) -> Tensors:
    return noise(device, "float32", (batch, call.m), (batch, call.m), (batch, 2))


def parts_and_x(call: MixesCall, batch: int, device: str) -> Tensors:
    g, along = noise(device, "float32", (batch, call.parts, call.m), (batch,))
    return g.to(torch.bfloat16), along, *x_and_fn(call, batch, device)


def run_split(call: MixesCall, choice: Choice, fn) -> torch.Tensor:
    return launch.split(fn, call, choice)


def run_partials(call: MixesCall, choice: Choice, x, split) -> Tensors:
    return launch.partials(x, split, call.precision, choice)


def run_reduce(call: MixesCall, choice: Choice, made, squares) -> Tensors:
    return launch.reduce(made, squares, call, NORM_EPS, False, choice)


def run_upstream(call: MixesCall, choice: Choice, dmixes, mixes, norms) -> Tensors:
    return launch.upstream(dmixes, mixes, norms, call, choice)


def run_backward(call: MixesCall, choice: Choice, g, along, x, fn) -> Tensors:
    return launch.gradients(g, along, x.unsqueeze(1), fn, call, choice)


def judged(call: MixesCall) -> tuple[MixesWorkload, Tensors]:
    """A workload of this call, and its inputs as the budget takes them."""
    workload = MixesWorkload(
        "tried", 1, frozenset(), "a trial", 1, call.columns, call.m, JUDGED_TOKENS,
        getattr(torch, call.dtype), NORM_EPS, precision=call.precision,
    )  # fmt: skip
    x, fn, _, dmixes = workload.make_inputs()
    return workload, (x, dmixes, fn[None])


def mixes_and_norms(
    call: MixesCall, device: str, x, fn, of_split=None, of_partials=None, of_reduce=None
) -> Tensors:
    """The forward with these choices for its three kernels."""
    split = launch.split(fn[0].to(device), call, of_split)
    made = launch.partials(x[0].to(device), split, call.precision, of_partials)
    return launch.reduce(*made, call, NORM_EPS, False, of_reduce)


def split_error(call: MixesCall, choice: Choice, device: str) -> float:
    workload, (x, dmixes, fn) = judged(call)
    mixes, _ = mixes_and_norms(call, device, x, fn, of_split=choice)
    return error(workload, (x, dmixes, fn), {"mixes": mixes})


def partials_error(call: MixesCall, choice: Choice, device: str) -> float:
    workload, (x, dmixes, fn) = judged(call)
    mixes, _ = mixes_and_norms(call, device, x, fn, of_partials=choice)
    return error(workload, (x, dmixes, fn), {"mixes": mixes})


def reduce_error(call: MixesCall, choice: Choice, device: str) -> float:
    workload, (x, dmixes, fn) = judged(call)
    mixes, _ = mixes_and_norms(call, device, x, fn, of_reduce=choice)
    return error(workload, (x, dmixes, fn), {"mixes": mixes})


def upstream_error(call: MixesCall, choice: Choice, device: str) -> float:
    return gradient_error(call, device, of_upstream=choice)


def backward_error(call: MixesCall, choice: Choice, device: str) -> float:
    return gradient_error(call, device, of_backward=choice)


def gradient_error(call: MixesCall, device: str, of_upstream=None, of_backward=None) -> float:
    """The error of the backward with these choices for its two kernels."""
    workload, (x, dmixes, fn) = judged(call)
    made = launch.upstream(dmixes[0].to(device), *mixes_and_norms(call, device, x, fn), call, of_upstream)
    dx, dfn = launch.gradients(*made, x[0].to(device).unsqueeze(1), fn[0].to(device), call, of_backward)
    dx = dx.squeeze(1)
    return error(workload, (x, dmixes, fn), {"dx": dx, "dfn": dfn})


def error(workload: MixesWorkload, inputs: Tensors, found: dict[str, torch.Tensor]) -> float:
    """The largest error of these results in units of its budget."""
    truth, budgets = exact(workload, *inputs), error_budget(workload, *inputs)
    return max(worst(t[None], truth[name], budgets[name]) for name, t in found.items())


def kernel_calls(workload: MixesWorkload) -> Iterator[tuple[str, Any]]:
    """(kernel, its call), one for each kernel that a workload runs."""
    call = launch.call_for(workload.m, workload.columns, workload.dtype, workload.precision)
    for name in launch.KERNELS:
        yield name, call


def call_public(workload: MixesWorkload, empty: Callable[..., torch.Tensor]) -> None:
    """Call the public function, for its checks, on tensors that `empty(*shape, dtype=...)` makes."""
    x = empty(workload.batch, workload.n, workload.c, dtype=workload.dtype)
    fn = empty(workload.m, workload.columns)
    hc_mixes(x.flatten(-2), fn, implementation="helion", **workload.options)


TRIALS = {
    launch.SPLIT: Trial(fn_alone, run_split, split_error),
    launch.PARTIALS: Trial(x_and_parts, run_partials, partials_error),
    launch.REDUCE: Trial(chunks, run_reduce, reduce_error),
    launch.UPSTREAM: Trial(mixes_and_gradient, run_upstream, upstream_error),
    launch.BACKWARD: Trial(parts_and_x, run_backward, backward_error),
}
"""The calls of `hc_mixes`."""
