"""hc_mixes as the gate judges it: mixes and dx token by token, dfn element by element.

An element of the batch is a group of tokens: each has a sum of its own, dfn, from its own call.  The norm
weight is in fn, as the public function has it before it calls an operator; that function itself has one of
powers of two, with which fn is the same.
"""

from __future__ import annotations

import functools

import torch

from ci.gate import choices, gate
from helion_sinkhorn import hc_mixes
from helion_sinkhorn.lab.mixes import budget
from helion_sinkhorn.lab.mixes.workloads import MixesWorkload
from helion_sinkhorn.ops.mhc.mixes import torch_op
from helion_sinkhorn.runtime.launch import device_of
from helion_sinkhorn.runtime.views import parameter, placed

COMPUTES = {
    "hc_mixes_split": ("mixes",), "hc_mixes_partials": ("mixes",), "hc_mixes_reduce": ("mixes",),
    "hc_mixes_upstream": ("dx", "dfn"), "hc_mixes_backward": ("dx", "dfn"),
}  # fmt: skip
"""The results that show what each kernel did."""


def inputs(workload: MixesWorkload, steps: int) -> tuple[torch.Tensor, ...]:
    """x, the upstream gradient, and fn once for each element."""
    x, fn, weight, dmixes = workload.make_inputs()
    fn = fn if weight is None else fn * weight
    return x, dmixes, fn.expand(len(x), -1, -1)


def truths(workload: MixesWorkload, *given: torch.Tensor) -> dict[str, gate.Truth]:
    """The equations in float64."""
    found = {}
    for name, e in budget.evaluated(workload, *given).items():
        exact, allowed, leaning = (t.flatten(2) for t in (e.value, e.budget, e.leaning))
        dtype = dtype_of(workload, name)
        spread = gate.spread(exact, allowed, dtype)
        found[name] = gate.Truth(
            exact, allowed, spread, gate.largest(exact), (leaning / spread).mean().item(), len(exact),
            # a token's entries share its norm; all of dfn shares those of its tokens
            (-2, -1) if name == "dfn" else (-1,), dtype,
        )  # fmt: skip
    return found


def dtype_of(workload: MixesWorkload, name: str) -> torch.dtype:
    return workload.dtype if name == "dx" else torch.float32


def candidates(workload: MixesWorkload, *given: torch.Tensor) -> list[gate.Candidate]:
    """Every kernel with each of its configs and what is served of the others; on a CPU the CPU path."""
    if not given[0].is_cuda:
        return choices.on_cpu(budget.RESULTS, on_cpu, workload)
    from helion_sinkhorn.ops.mhc.mixes import launch

    call = launch.call_for(workload.m, workload.columns, workload.dtype, workload.precision)
    served = [
        gate.Candidate("hc_mixes", name, {}, "all served", True, functools.partial(on_device, workload, name))
        for name in budget.RESULTS
    ]
    return served + choices.candidates(
        COMPUTES, call, len(given[0]) * workload.tokens, device_of(given[0]),
        lambda name, choice: functools.partial(on_gpu, workload, name, {choice.kernel: choice}),
    )  # fmt: skip


def on_device(workload: MixesWorkload, name: str, *given: torch.Tensor) -> torch.Tensor:
    """What is served on a GPU; what emulates one runs launches, and that function would take its CPU path."""
    return as_served(workload, name, *given) if given[0].is_cuda else on_gpu(workload, name, {}, *given)


def as_served(workload: MixesWorkload, name: str, *given: torch.Tensor) -> torch.Tensor:
    """One result by the public function and autograd."""
    weight = torch.exp2(torch.arange(workload.columns, device=given[0].device) % 3 - 1.0)
    leaves: list[torch.Tensor] = []

    def forward(x, fn):
        leaves[:] = [t.detach().requires_grad_() for t in (x, fn / weight)]
        leaves.append(hc_mixes(*leaves, norm_weight=weight, **workload.options))
        return leaves[-1].detach(), None

    def backward(dmixes, *_):
        dx, dfn = torch.autograd.grad(leaves[2], leaves[:2], dmixes)
        return dx, dfn / weight

    return result(name, forward, backward, *given)


def on_cpu(workload: MixesWorkload, name: str, *given: torch.Tensor) -> torch.Tensor:
    def forward(x, fn):
        arguments = workload.norm_eps, workload.eps_outside, workload.precision, "pytorch"
        return torch_op.forward(x, fn, *arguments)

    def backward(*tensors):
        return torch_op.backward(*tensors, workload.precision, "pytorch")

    return result(name, forward, backward, *given)


def on_gpu(
    workload: MixesWorkload, name: str, chosen: dict[str, object], *given: torch.Tensor
) -> torch.Tensor:
    """One result, kernels with the choices named and what is served of the others."""
    from helion_sinkhorn.ops.mhc.mixes import launch

    rows = launch.several(parameter(given[2][0]), 0)
    call = launch.call_for(len(rows), workload.columns, workload.dtype, workload.precision)

    def forward(x, fn):
        lead, streams = torch_op.leading(x, fn), placed(x.reshape(-1, workload.columns))
        split = launch.split(rows, call, chosen.get(launch.SPLIT))
        made = launch.partials(streams, split, call.precision, chosen.get(launch.PARTIALS))
        norm = workload.norm_eps, workload.eps_outside
        mixes, norms = launch.reduce(*made, call, *norm, chosen.get(launch.REDUCE))
        return mixes[:, : workload.m].contiguous().view(*lead, workload.m), norms.view(*lead, 2)

    def backward(*tensors):
        dmixes, x, _, mixes, norms = tensors
        tokens = (launch.several(t.flatten(0, -2), 1) for t in (dmixes, mixes))
        given = launch.upstream(*tokens, norms.flatten(0, -2), call, chosen.get(launch.UPSTREAM))
        streams = placed(x.reshape(-1, workload.columns))
        dx, dfn = launch.gradients(*given, streams.unsqueeze(1), rows, call, chosen.get(launch.BACKWARD))
        return dx.view(x.shape), dfn[: workload.m]

    return result(name, forward, backward, *given)


def result(name: str, forward, backward, x, dmixes, fn) -> torch.Tensor:
    """One result: what belongs to tokens by one call for all elements, dfn by a call for each."""
    if name == "mixes":
        return forward(x, fn[0])[0]

    def gradients(at):
        mixes, norms = forward(x[at], fn[0])
        return backward(dmixes[at], x[at], fn[0], mixes, norms)

    if name == "dx":
        return gradients(slice(None))[0].flatten(2)
    return torch.stack([gradients(k)[1] for k in range(len(x))])
