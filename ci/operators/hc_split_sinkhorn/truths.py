"""hc_split_sinkhorn as the gate judges it: coefficients and every gradient, sums over tokens among them.

An element of the batch is a group of tokens: each has sums of its own, dbase and dscale, from its own call.
Results are judged as matrices; those that are vectors are matrices of one row.
"""

from __future__ import annotations

import functools

import torch

from ci.gate import choices, gate
from helion_sinkhorn import reference
from helion_sinkhorn.ops.hc_split_sinkhorn import budget, eager
from helion_sinkhorn.ops.hc_split_sinkhorn.workloads import HcWorkload
from helion_sinkhorn.ops.sinkhorn.budget import SMALLEST_NORMAL
from helion_sinkhorn.ops.sinkhorn.parity import LAST_PLACES, Peer, largest
from helion_sinkhorn.runtime.launch import device_of
from helion_sinkhorn.testing import rounding

VALUES, GRADIENTS = ("pre", "post", "comb"), ("dmixes", "dbase", "dscale")
SUMS = "dbase", "dscale"


def computes(workload: HcWorkload) -> dict[str, tuple[str, ...]]:
    """The results of each kernel."""
    forward = "hc_split_sinkhorn_reduced" if workload.splits else "hc_split_sinkhorn_forward"
    return {forward: VALUES, "hc_split_sinkhorn_backward": GRADIENTS}


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
    return {
        k: gate.Truth(
            t, budgets[k], spreads[k], (gate.noticeable if k in VALUES else gate.largest)(t),
            # A token's entries share its sums, and sums over tokens those of all.  What tokens share, the
            # errors of their parameters, goes to one side at most as far as `most` has it.
            most[k], len(t), tuple(range(1 if k in SUMS else 2, t.dim())), dtype_of(workload, k), peer.get(k),
        )
        for k, t in exact.items()
    }  # fmt: skip


def peer_of_gradient(workload: HcWorkload, exact: torch.Tensor, mixes, *given: torch.Tensor) -> Peer:
    """What float32 PyTorch's autograd of the specification reaches for dmixes, relative to a token's largest
    entry."""
    *gradients, scale, base = given
    leaf = mixes.detach().clone().float().requires_grad_()
    of_mixes, options = workload.given(leaf)
    out = reference.hc_split_sinkhorn(of_mixes, scale[0].float(), base[0].float(), **options)
    found = torch.autograd.grad(out, leaf, [t.float() for t in gradients])[0].to(workload.dtype)
    size = exact.abs().amax(-1, keepdim=True).clamp_min(SMALLEST_NORMAL)
    floor = LAST_PLACES + (rounding.half_ulp(exact, workload.dtype) / size).amax((-2, -1))
    return Peer(size, torch.maximum(largest(found, exact, size), floor), floor)


def dtype_of(workload: HcWorkload, name: str) -> torch.dtype:
    return workload.dtype if name == "dmixes" else torch.float32


def candidates(workload: HcWorkload, *given: torch.Tensor) -> list[gate.Candidate]:
    """Both kernels with each of their configs; on a CPU the CPU path."""
    if not given[0].is_cuda:
        return choices.on_cpu(budget.RESULTS, on_cpu, workload)
    from helion_sinkhorn.ops.hc_split_sinkhorn import launch

    call = launch.call_for(workload.n, workload.n_iters, workload.eps, workload.dtype)
    return choices.candidates(
        computes(workload), call, workload.tokens, device_of(given[0]),
        lambda name, choice: functools.partial(on_gpu, workload, name, choice),
    )  # fmt: skip


def on_cpu(workload: HcWorkload, name: str, *given: torch.Tensor) -> torch.Tensor:
    return result(workload, name, eager_forward, eager.backward, *given)


def on_gpu(workload: HcWorkload, name: str, choice: object, *given: torch.Tensor) -> torch.Tensor:
    from helion_sinkhorn.ops.hc_split_sinkhorn import launch

    def forward(workload, mixes, scale, base):
        # a choice is one for the kernel that is judged
        constants = *workload.arguments, torch.float32, choice if name in VALUES else None
        if not workload.splits:
            return *launch.forward(mixes, scale, base, *constants), mixes, None
        given = *workload.parts(mixes), scale, base
        return launch.forward_reduced(*given, *workload.norm, *constants)

    return result(workload, name, forward, functools.partial(launch.backward, choice=choice), *given)


def eager_forward(workload: HcWorkload, mixes, scale, base) -> tuple[torch.Tensor | None, ...]:
    """(pre, post, comb, mixes, norms) of the CPU path; norms are None but for partial sums."""
    norms = None
    if workload.splits:
        mixes, norms = eager.reduce(*workload.parts(mixes), *workload.norm)
    return *eager.forward(mixes, scale, base, *workload.arguments, torch.float32), mixes, norms


def result(workload: HcWorkload, name: str, forward, backward, given, dpre, dpost, dcomb, scale, base):
    """One result: what belongs to tokens by one call for all elements, sums by a call for each."""
    mixes, norms = given, None
    if name in VALUES or workload.splits:
        *values, mixes, norms = forward(workload, given, scale[0], base[0])
    if name in VALUES:
        return values[VALUES.index(name)]

    def gradients(at):
        upstream = choices.given(workload.unused, dpre=dpre[at], dpost=dpost[at], dcomb=dcomb[at])
        return backward(*upstream, mixes[at], scale[0], base[0], *workload.arguments)

    if name == "dmixes":
        dmixes = gradients(slice(None))[0]
        return dmixes if norms is None else of_partials(workload, dmixes, mixes, norms)
    sums = torch.stack([gradients(k)[1] for k in range(len(mixes))]).unsqueeze(1)
    # a tensor of its own, as every result is
    return (sums[..., : workload.columns] if name == "dbase" else sums[..., workload.columns :]).clone()


def of_partials(workload: HcWorkload, dmixes, mixes, norms) -> torch.Tensor:
    """The gradient of partial sums and squares, as `make_inputs` has them, from that of the mixes."""
    size, _, outside = workload.norm
    dpartials, dsquares = eager.reduce_backward(dmixes, None, mixes, norms, workload.splits, size, outside)
    return torch.cat([dpartials, dsquares.unsqueeze(-1)], -1).movedim(0, -3).contiguous()
