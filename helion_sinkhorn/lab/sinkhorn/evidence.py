"""EVIDENCE of Sinkhorn: P, its exact gradient and the implicit one within what correct rounding can do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from helion_sinkhorn.lab.draws import noise
from helion_sinkhorn.lab.evidence import Alone, Choices, Evidence, Results, Tensors
from helion_sinkhorn.lab.machine.binary import Binary, Job, exchanges
from helion_sinkhorn.lab.rounding import SAMPLES
from helion_sinkhorn.lab.sinkhorn.budget import error_budget, exact, peer_of_gradient, scaling_form
from helion_sinkhorn.lab.sinkhorn.implicit import evidence as implicit
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.lab.truth import (
    SYSTEMATIC_MATRICES,
    ToTheBaseTwo,
    Truth,
    judged,
    largest,
    noticeable,
    one_sided,
    spread,
)
from helion_sinkhorn.ops.sinkhorn import eager, launch
from helion_sinkhorn.ops.sinkhorn.api import sinkhorn
from helion_sinkhorn.ops.sinkhorn.implicit import launch as implicit_launch
from helion_sinkhorn.ops.sinkhorn.space import TUNED_EPS, SinkhornCall
from helion_sinkhorn.runtime.kernel import Choice

RESULTS = "P", "dX"


def is_implicit(workload: SinkhornWorkload) -> bool:
    return workload.backward == "implicit"


def kernel_calls(workload: SinkhornWorkload) -> Iterator[tuple[str, Any]]:
    if is_implicit(workload):
        yield from implicit.kernel_calls(workload)
        return
    call = launch.call_for(workload.n, workload.m, workload.dtype, *workload.arguments)
    yield "sinkhorn_forward", call
    yield launch.backward_kernel(call), call


def before(workload: SinkhornWorkload) -> Iterator[tuple[str, Any]]:
    """The forward, where a workload is the implicit gradient, which begins with P."""
    if is_implicit(workload):
        yield "sinkhorn_forward", launch.call_for(workload.n, workload.m, workload.dtype, *workload.arguments)


def spare(workload: SinkhornWorkload) -> Iterator[tuple[str, Any]]:
    """The other solver, and the gradient with its history in memory."""
    if is_implicit(workload):
        yield from implicit.spare(workload)
        return
    call = launch.call_for(workload.n, workload.m, workload.dtype, *workload.arguments)
    if launch.backward_kernel(call) != "sinkhorn_backward_history":
        yield "sinkhorn_backward_history", call


def of_call(kernel: str, call: SinkhornCall, batch: int) -> SinkhornWorkload:
    return SinkhornWorkload(
        "tried", call.n, call.m, batch, frozenset(), "a trial", call.n_iters, call.form, call.first,
        getattr(torch, call.dtype), TUNED_EPS, "randn_1_and_3",
        "implicit" if kernel in implicit_launch.KERNELS else "exact",
    )  # fmt: skip


def inputs(workload: SinkhornWorkload, steps: int, **drawn: Any) -> Tensors:
    """Logits, or P of an implicit gradient, and upstream gradients."""
    if is_implicit(workload):
        return implicit.inputs(workload, steps, **drawn)
    k = judged(workload, steps)
    return tuple(t[:k] for t in workload.make_inputs(**drawn))


def truths(workload: SinkhornWorkload, x: torch.Tensor, dy: torch.Tensor) -> dict[str, Truth]:
    """The equations in float64."""
    if is_implicit(workload):
        return implicit.truths(workload, x, dy)
    values = exact(x, dy, **workload.options)
    budgets = error_budget(x, dy, **workload.options, out_dtype=workload.dtype)
    spreads = [spread(*pair, workload.dtype) for pair in zip(values, budgets, strict=True)]
    few = slice(SYSTEMATIC_MATRICES)
    given = x[few].double(), dy[few].double(), *workload.arguments
    runs = (
        dict(zip(RESULTS, scaling_form(*given, ToTheBaseTwo(seed)), strict=True)) for seed in range(SAMPLES)
    )
    of_few = (dict(zip(RESULTS, (t[few] for t in of), strict=True)) for of in (values, spreads))
    biases = one_sided(runs, *of_few)
    scales = noticeable(values[0]), largest(values[1])
    # the budget of values of P has room for an error of two units in the last place of a division
    peer = {"dX": peer_of_gradient(x, dy, values[1], scales[1], *workload.arguments)}
    # all tested gradients are as different as their cotangents
    distinct = len(torch.unique(x, dim=0)), len(x)
    # trail lines are normalised last, each by its own sum
    together = (-2 if workload.first == "rows" else -1,)
    return {
        name: Truth(
            values[k], budgets[k], spreads[k], scales[k], biases[name], distinct[k], together, workload.dtype,
            peer.get(name),
        )
        for k, name in enumerate(RESULTS)
    }  # fmt: skip


def run(workload: SinkhornWorkload, choices: Choices | None, of: Collection[str], x, dy) -> Results:
    """P and dX, by one call each."""
    if is_implicit(workload):
        return implicit.run(workload, choices, of, x, dy)
    module, results = eager if choices is None else launch, {}

    def chosen(which: str) -> list[Choice]:
        return [choice for name, choice in (choices or {}).items() if name.startswith(f"sinkhorn_{which}")]

    if "P" in of:
        results["P"] = module.forward(x, *workload.arguments, workload.dtype, *chosen("forward"))
    if "dX" in of:
        results["dX"] = module.backward(dy, x, *workload.arguments, *chosen("backward"))
    return results


def operands(call: SinkhornCall, batch: int, device: str, count: int) -> Tensors:
    return noise(device, call.dtype, *[(batch, call.n, call.m)] * count)


def p_and_gradient(call: SinkhornCall, batch: int, device: str) -> Tensors:
    x, dy = operands(call, batch, device, 2)
    return x.softmax(-1), dy


def run_forward(call: SinkhornCall, choice: Choice, x: torch.Tensor, eps: float = TUNED_EPS) -> torch.Tensor:
    return launch.forward(x, call.n_iters, eps, call.form, call.first, x.dtype, choice)


def run_backward(
    call: SinkhornCall, choice: Choice, x: torch.Tensor, dy: torch.Tensor, eps: float = TUNED_EPS
) -> torch.Tensor:
    return launch.backward(dy, x, call.n_iters, eps, call.form, call.first, choice)


def run_implicit(call: SinkhornCall, choice: Choice, p: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    solver = choice.kernel.rsplit("_", 1)[1]
    return implicit_launch.implicit_backward(dy, p, call.n_iters, "corrected", solver, p.dtype, choice)


def owns_whole_matrices(job: Job) -> bool:
    """Whether a thread holds every entry of its matrices, so that none passes through memory."""
    variant = dict(job.choice.variant)
    if job.choice.kernel == "sinkhorn_backward_history":
        return False
    return variant.get("packed", False) or (
        any(variant.get("thread", ())) and variant["thread"] == (job.call.n, job.call.m)
    )


def problems(binary: Binary) -> Iterator[str]:
    """Threads that own whole matrices have nothing to exchange within an iteration."""
    if owns_whole_matrices(binary.job):
        call = binary.job.call
        matrices = dict(binary.job.choice.config)["block_sizes"][0] // binary.threads
        # a result may change threads once, for coalesced stores, but an iteration may not
        allowed = 2 * matrices * call.n * call.m
        if exchanges(binary.counts) > allowed or any(exchanges(body) for body in binary.loops):
            yield "threads that own whole matrices exchange data"


def call_public(workload: SinkhornWorkload, empty: Callable[..., torch.Tensor]) -> None:
    if workload.n_iters == 0:
        raise NotImplementedError("n_iters is 0, which is exp(logits) and no kernel")
    logits = empty(workload.batch, workload.n, workload.m, dtype=workload.dtype)
    sinkhorn(logits, implementation="helion", **workload.options)


EVIDENCE = Evidence(
    "sinkhorn",
    SinkhornWorkload,
    {**launch.KERNELS, **implicit_launch.KERNELS},
    {
        "sinkhorn_forward": ("P",),
        "sinkhorn_backward": ("dX",),
        "sinkhorn_backward_history": ("dX",),
        **implicit.COMPUTES,
    },
    kernel_calls,
    of_call,
    lambda workload: implicit.results(workload) if is_implicit(workload) else RESULTS,
    inputs,
    truths,
    run,
    call_public,
    judged=32,
    optional=implicit.COMPARED,
    before=before,
    spare=spare,
    alone={
        "sinkhorn_forward": Alone(lambda *of: operands(*of, 1), run_forward),
        **dict.fromkeys(
            ("sinkhorn_backward", "sinkhorn_backward_history"),
            Alone(lambda *of: operands(*of, 2), run_backward),
        ),
        **dict.fromkeys(implicit_launch.KERNELS, Alone(p_and_gradient, run_implicit)),
    },
    problems=problems,
)
