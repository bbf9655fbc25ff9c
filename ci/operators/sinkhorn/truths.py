"""Sinkhorn and its exact gradient as the gate judges them: truths, kernels, and torch.compile."""

from __future__ import annotations

import functools

import torch

from ci.gate import choices, gate
from helion_sinkhorn import reference
from helion_sinkhorn.lab import rounding
from helion_sinkhorn.lab.sinkhorn import budget as testing
from helion_sinkhorn.lab.sinkhorn.parity import peer_of_gradient
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.ops.sinkhorn import eager
from helion_sinkhorn.runtime.launch import device_of


def inputs(workload: SinkhornWorkload, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The judged logits and upstream gradients."""
    k = gate.judged(workload, steps)
    return tuple(t[:k] for t in workload.make_inputs())


def truths(workload: SinkhornWorkload, x: torch.Tensor, dy: torch.Tensor) -> dict[str, gate.Truth]:
    """{"P": ..., "dX": ...}."""
    exact = testing.exact(x, dy, **workload.options)
    budgets = testing.error_budget(x, dy, **workload.options, out_dtype=workload.dtype)
    spreads = [gate.spread(*pair, workload.dtype) for pair in zip(exact, budgets, strict=True)]
    biases = systematic(workload, x, dy, exact, spreads)
    scales = gate.noticeable(exact[0]), gate.largest(exact[1])
    # values of P are held to their budget, which has room for two units in the last place of a division
    peer = {"dX": peer_of_gradient(x, dy, exact[1], scales[1], *workload.arguments)}
    # all judged gradients are as different as their cotangents
    distinct = len(torch.unique(x, dim=0)), len(x)
    # trail lines are normalised last, each by its own sum
    together = (-2 if workload.first == "rows" else -1,)
    return {
        name: gate.Truth(
            exact[k],
            budgets[k],
            spreads[k],
            scales[k],
            biases[k],
            distinct[k],
            together,
            workload.dtype,
            peer.get(name),
        )
        for k, name in enumerate(("P", "dX"))
    }


def systematic(workload: SinkhornWorkload, x, dy, exact, spreads) -> list[float]:
    """The largest bias, in spreads, of P and of dX under gate.ToTheBaseTwo."""
    few = slice(gate.SYSTEMATIC_MATRICES)
    x64, dy64 = x[few].double(), dy[few].double()
    most = [0.0, 0.0]
    for seed in range(rounding.SAMPLES):
        results = testing.scaling_form(x64, dy64, *workload.arguments, gate.ToTheBaseTwo(seed))
        for k, result in enumerate(results):
            most[k] = max(most[k], abs(gate.bias(result, exact[k][few], spreads[k][few])))
    return most


def candidates(workload: SinkhornWorkload, x: torch.Tensor, dy: torch.Tensor) -> list[gate.Candidate]:
    """Every kernel that takes this call, with each of its configs; on a CPU the CPU path."""
    arguments, dtype = workload.arguments, workload.dtype
    if not x.is_cuda:
        return [
            gate.Candidate(
                "eager.forward", "P", {}, "", True, lambda x, _: eager.forward(x, *arguments, dtype)
            ),
            gate.Candidate(
                "eager.backward", "dX", {}, "", True, lambda x, dy: eager.backward(dy, x, *arguments)
            ),
        ]
    return kernels(workload, x)


def kernels(workload: SinkhornWorkload, x: torch.Tensor) -> list[gate.Candidate]:
    from helion_sinkhorn.ops.sinkhorn import launch

    arguments, dtype = workload.arguments, workload.dtype

    def forward(x, _, choice):
        return launch.forward(x, *arguments, dtype, choice)

    def backward(x, dy, choice):
        return launch.backward(dy, x, *arguments, choice)

    device = device_of(x)
    call = launch.call_of(x, *arguments)
    taken = "sinkhorn_forward", launch.backward_kernel(call)
    names = dict.fromkeys((*taken, "sinkhorn_backward_history"), "dX") | {"sinkhorn_forward": "P"}
    return [
        choices.candidate(
            of, choice, name in taken and served,
            functools.partial(forward if of == "P" else backward, choice=choice),
        )
        for name, of in names.items()
        for choice, served in choices.choices(name, call, x.size(0), device)
    ]  # fmt: skip


def compiled(workload: SinkhornWorkload, x: torch.Tensor, dy: torch.Tensor) -> gate.Results:
    """torch.compile of the specification, in float32 and rounded once."""
    leaf = x.requires_grad_()
    function = torch.compile(
        lambda t: reference.sinkhorn(t.float(), **workload.options).to(workload.dtype), dynamic=False
    )
    p = function(leaf)
    (dx,) = torch.autograd.grad(p, leaf, dy)
    return {"P": p, "dX": dx}
