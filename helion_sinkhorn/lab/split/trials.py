"""Trials of the hc_split_sinkhorn kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from helion_sinkhorn.lab.operator import Tensors, Trial, noise
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.lab.split.budget import error_budget, exact
from helion_sinkhorn.lab.split.workloads import HcWorkload
from helion_sinkhorn.ops.mhc.split import launch
from helion_sinkhorn.ops.mhc.split.api import hc_split_sinkhorn
from helion_sinkhorn.ops.mhc.split.partials import Reduce
from helion_sinkhorn.ops.mhc.split.space import HcCall
from helion_sinkhorn.ops.sinkhorn.space import TUNED_EPS
from helion_sinkhorn.runtime.kernel import Choice

JUDGED_TOKENS = 64
TRIED_SPLITS = 8
"""Partial sums of the mixes."""


def arguments(call: HcCall) -> tuple[Any, ...]:
    """What the operators take behind mixes, scale and base, with an mHC model's constants."""
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


def partials_and_parameters(call: HcCall, batch: int, device: str) -> Tensors:
    """With the tokens first, as hc_mixes makes them."""
    columns = call.n * (call.n + 2)
    shapes = (batch, TRIED_SPLITS, columns), (batch, TRIED_SPLITS), (3,), (columns,)
    partials, squares, scale, base = noise(device, "float32", *shapes)
    return partials, squares.square() * (workload_of(call, TRIED_SPLITS).size / TRIED_SPLITS), scale, base


def run_reduced(call: HcCall, choice: Choice, partials, squares, scale, base) -> Tensors:
    norm = workload_of(call, TRIED_SPLITS).norm
    given = partials.movedim(1, 0), squares.movedim(1, 0), scale, base
    return launch.forward_reduced(*given, *norm, *arguments(call), torch.float32, choice)


def run_backward(call: HcCall, choice: Choice, mixes, scale, base, dpre, dpost, dcomb) -> Tensors:
    return launch.backward(dpre, dpost, dcomb, mixes, scale, base, *arguments(call), choice)


def workload_of(call: HcCall, splits: int = 0) -> HcWorkload:
    """A workload of this call."""
    return HcWorkload(
        "tried", 1, frozenset(), "a trial", call.n, JUDGED_TOKENS, call.n_iters, arguments(call)[2],
        getattr(torch, call.dtype), splits=splits,
    )  # fmt: skip


def judged(call: HcCall, splits: int = 0) -> tuple[HcWorkload, tuple[torch.Tensor, ...]]:
    """A workload of this call, and its inputs as the budget takes them."""
    workload = workload_of(call, splits)
    mixes, scale, base, *gradients = workload.make_inputs()
    return workload, (mixes, *gradients, scale[None], base[None])


def forward_error(call: HcCall, choice: Choice, device: str) -> float:
    workload, inputs = judged(call)
    mixes, _, _, _, scale, base = (t.to(device)[0] for t in inputs)
    pre, post, comb = run_forward(call, choice, mixes, scale, base)
    return error(workload, inputs, (("pre", pre), ("post", post), ("comb", comb)))


def reduced_error(call: HcCall, choice: Choice, device: str) -> float:
    workload, inputs = judged(call, TRIED_SPLITS)
    mixes, _, _, _, scale, base = (t.to(device)[0] for t in inputs)
    partials, squares = (t.movedim(0, 1).contiguous() for t in workload.parts(mixes))
    pre, post, comb, *_ = run_reduced(call, choice, partials, squares, scale, base)
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
    """(kernel, its call), one for each kernel that a workload runs."""
    call = launch.call_for(workload.n, workload.n_iters, workload.eps, workload.dtype)
    yield launch.REDUCED if workload.splits else launch.FORWARD, call
    yield launch.BACKWARD, call


def call_public(workload: HcWorkload, empty: Callable[..., torch.Tensor]) -> None:
    """Call the public function, for its checks, on tensors that `empty(*shape, dtype=...)` makes."""
    columns, tokens = workload.columns, (workload.batch, workload.tokens)
    mixes, options = empty(*tokens, columns, dtype=workload.dtype), workload.options
    if workload.splits:
        mixes, squares = empty(workload.splits, *tokens, columns), empty(workload.splits, *tokens)
        options = {**options, "reduce": Reduce(squares, *workload.norm)}
    hc_split_sinkhorn(mixes, empty(3), empty(columns), implementation="helion", **options)


TRIALS = {
    launch.FORWARD: Trial(mixes_and_parameters, run_forward, forward_error),
    launch.REDUCED: Trial(partials_and_parameters, run_reduced, reduced_error),
    launch.BACKWARD: Trial(with_gradients, run_backward, backward_error),
}
