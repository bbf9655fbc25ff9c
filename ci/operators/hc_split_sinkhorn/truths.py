"""hc_split_sinkhorn as the gate judges it: coefficients and every gradient, sums over tokens among them.

An element of the batch is a group of tokens: each has sums of its own, dbase and dscale, from its own call.
Results are judged as matrices; those that are vectors are matrices of one row.
"""

from __future__ import annotations

import functools

import torch

from ci.gate import gate
from ci.gate.choices import choices
from helion_sinkhorn import reference
from helion_sinkhorn.ops.hc_split_sinkhorn import budget, eager
from helion_sinkhorn.ops.hc_split_sinkhorn.workloads import HcWorkload
from helion_sinkhorn.ops.sinkhorn.budget import SMALLEST_NORMAL
from helion_sinkhorn.ops.sinkhorn.parity import LAST_PLACES, Peer, largest
from helion_sinkhorn.testing import rounding

COMPUTES = {
    "hc_split_sinkhorn_forward": ("pre", "post", "comb"),
    "hc_split_sinkhorn_backward": ("dmixes", "dbase", "dscale"),
}
"""The results of each kernel."""


def inputs(workload: HcWorkload, steps: int) -> tuple[torch.Tensor, ...]:
    """mixes, the three upstream gradients, and scale and base once for each element."""
    mixes, scale, base, *gradients = workload.make_inputs()
    return mixes, *gradients, scale.expand(len(mixes), -1), base.expand(len(mixes), -1)


def truths(workload: HcWorkload, *given: torch.Tensor) -> dict[str, gate.Truth]:
    """The equations in float64."""
    exact, budgets = budget.exact(workload, *given), budget.error_budget(workload, *given)
    spreads = {k: gate.spread(exact[k], budgets[k], dtype_of(workload, k)) for k in exact}
    most = dict.fromkeys(exact, 0.0)
    wide = [t.double() for t in given]
    for seed in range(rounding.SAMPLES):
        for k, t in budget.model(workload, *wide, gate.Systematic(seed)).items():
            most[k] = max(most[k], abs(gate.bias(t, exact[k], spreads[k])))
    peer = {"dmixes": peer_of_gradient(workload, exact["dmixes"], *given)}
    values = COMPUTES["hc_split_sinkhorn_forward"]
    return {
        k: gate.Truth(
            t, budgets[k], spreads[k], (gate.noticeable if k in values else gate.largest)(t),
            # tokens of an element share its parameters, and with them the errors of a
            most[k], len(t), tuple(range(1, t.dim())), dtype_of(workload, k), peer.get(k),
        )
        for k, t in exact.items()
    }  # fmt: skip


def peer_of_gradient(workload: HcWorkload, exact: torch.Tensor, mixes, *given: torch.Tensor) -> Peer:
    """What float32 PyTorch's autograd of the specification reaches for dmixes, relative to a token's largest
    entry."""
    *gradients, scale, base = given
    leaf = mixes.detach().clone().float().requires_grad_()
    out = reference.hc_split_sinkhorn(leaf, scale[0].float(), base[0].float(), **workload.options)
    found = torch.autograd.grad(out, leaf, [t.float() for t in gradients])[0].to(workload.dtype)
    size = exact.abs().amax(-1, keepdim=True).clamp_min(SMALLEST_NORMAL)
    floor = LAST_PLACES + (rounding.half_ulp(exact, workload.dtype) / size).amax((-2, -1))
    return Peer(size, torch.maximum(largest(found, exact, size), floor), floor)


def dtype_of(workload: HcWorkload, name: str) -> torch.dtype:
    return workload.dtype if name == "dmixes" else torch.float32


def candidates(workload: HcWorkload, *given: torch.Tensor) -> list[gate.Candidate]:
    """Both kernels with each of their configs; on a CPU the CPU path."""
    if not given[0].is_cuda:
        return [
            gate.Candidate("eager", name, {}, "", True, functools.partial(on_cpu, workload, name))
            for name in budget.RESULTS
        ]
    from helion_sinkhorn.ops.hc_split_sinkhorn import launch
    from helion_sinkhorn.runtime import serving

    device, _, _ = serving.device_at(serving.index_of(given[0]))
    call = launch.call_for(workload.n, workload.n_iters, workload.eps, workload.dtype)
    return [
        gate.Candidate(
            kernel, name, {**dict(choice.config), **dict(choice.variant)}, choice.source, served,
            functools.partial(on_gpu, workload, name, choice),
        )
        for kernel, names in COMPUTES.items()
        for choice, served in choices(kernel, call, workload.tokens, device)
        for name in names
    ]  # fmt: skip


def on_cpu(workload: HcWorkload, name: str, *given: torch.Tensor) -> torch.Tensor:
    return result(workload, name, eager.forward, eager.backward, *given)


def on_gpu(workload: HcWorkload, name: str, choice: object, *given: torch.Tensor) -> torch.Tensor:
    from helion_sinkhorn.ops.hc_split_sinkhorn import launch

    forward = functools.partial(launch.forward, choice=choice)
    return result(workload, name, forward, functools.partial(launch.backward, choice=choice), *given)


def result(workload: HcWorkload, name: str, forward, backward, mixes, dpre, dpost, dcomb, scale, base):
    """One result: what belongs to tokens by one call for all elements, sums by a call for each."""
    names = COMPUTES["hc_split_sinkhorn_forward"]
    if name in names:
        return forward(mixes, scale[0], base[0], *workload.arguments, torch.float32)[names.index(name)]

    def gradients(at):
        upstream = (t[at] for t in (dpre, dpost, dcomb))
        return backward(*upstream, mixes[at], scale[0], base[0], *workload.arguments)

    if name == "dmixes":
        return gradients(slice(None))[0]
    sums = torch.stack([gradients(k)[1] for k in range(len(mixes))]).unsqueeze(1)
    columns = mixes.size(-1)
    # a tensor of its own, as every result is
    return (sums[..., :columns] if name == "dbase" else sums[..., columns:]).clone()
