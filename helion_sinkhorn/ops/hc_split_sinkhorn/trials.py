"""Trials of the hc_split_sinkhorn kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from helion_sinkhorn.ops.hc_split_sinkhorn import launch
from helion_sinkhorn.ops.hc_split_sinkhorn.budget import error_budget, exact
from helion_sinkhorn.ops.hc_split_sinkhorn.space import HcCall
from helion_sinkhorn.ops.hc_split_sinkhorn.workloads import HcWorkload
from helion_sinkhorn.ops.sinkhorn.space import TUNED_EPS
from helion_sinkhorn.runtime.kernel import Choice
from helion_sinkhorn.runtime.operator import Tensors, Trial, noise
from helion_sinkhorn.testing.rounding import worst

JUDGED_TOKENS = 64


def arguments(call: HcCall) -> tuple[Any, ...]:
    """Those of the operators behind mixes, scale and base, with an mHC model's constants."""
    eps = TUNED_EPS if call.deepseek else 0.0
    return call.n, call.n_iters, eps, 2.0, eps, 0.0, "io"


def mixes_and_parameters(call: HcCall, batch: int, device: str) -> Tensors:
    (mixes,) = noise(device, call.dtype, (batch, call.n * (call.n + 2)))
    return mixes, *noise(device, "float32", (3,), (call.n * (call.n + 2),))


def with_gradients(call: HcCall, batch: int, device: str) -> Tensors:
    n = call.n
    gradients = noise(device, "float32", (batch, n), (batch, n), (batch, n, n))
    return *mixes_and_parameters(call, batch, device), *gradients


def run_forward(call: HcCall, choice: Choice, mixes, scale, base) -> Tensors:
    return launch.forward(mixes, scale, base, *arguments(call), torch.float32, choice)


def run_backward(call: HcCall, choice: Choice, mixes, scale, base, dpre, dpost, dcomb) -> Tensors:
    return launch.backward(dpre, dpost, dcomb, mixes, scale, base, *arguments(call), choice)


def judged(call: HcCall) -> tuple[HcWorkload, tuple[torch.Tensor, ...]]:
    """A workload of this call, and its inputs as the budget takes them."""
    workload = HcWorkload(
        "tried", 1, frozenset(), "a trial", call.n, JUDGED_TOKENS, call.n_iters, arguments(call)[2],
        getattr(torch, call.dtype),
    )  # fmt: skip
    mixes, scale, base, *gradients = workload.make_inputs()
    return workload, (mixes, *gradients, scale[None], base[None])


def forward_error(call: HcCall, choice: Choice, device: str) -> float:
    workload, inputs = judged(call)
    mixes, _, _, _, scale, base = (t.to(device)[0] for t in inputs)
    pre, post, comb = run_forward(call, choice, mixes, scale, base)
    return error(workload, inputs, (("pre", pre), ("post", post), ("comb", comb)))


def backward_error(call: HcCall, choice: Choice, device: str) -> float:
    workload, inputs = judged(call)
    mixes, dpre, dpost, dcomb, scale, base = (t.to(device)[0] for t in inputs)
    dmixes, sums = run_backward(call, choice, mixes, scale, base, dpre, dpost, dcomb)
    dbase, dscale = sums.unsqueeze(0).split((mixes.size(-1), 3), -1)
    return error(workload, inputs, (("dmixes", dmixes), ("dbase", dbase), ("dscale", dscale)))


def error(workload: HcWorkload, inputs: tuple[torch.Tensor, ...], found) -> float:
    """The largest error of these results in units of its budget."""
    truth, budgets = exact(workload, *inputs), error_budget(workload, *inputs)
    return max(worst(t[None], truth[name], budgets[name]) for name, t in found)


def kernel_calls(workload: HcWorkload) -> Iterator[tuple[str, Any]]:
    """(kernel, its call), one for each kernel that serves a workload."""
    call = launch.call_for(workload.n, workload.n_iters, workload.eps, workload.dtype)
    yield launch.FORWARD, call
    yield launch.BACKWARD, call


TRIALS = {
    launch.FORWARD: Trial(mixes_and_parameters, run_forward, forward_error),
    launch.BACKWARD: Trial(with_gradients, run_backward, backward_error),
}
