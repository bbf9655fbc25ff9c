"""hc_post as the gate judges it: the new streams and every gradient, that of the bias among them.

An element of the batch is a group of tokens: each has a gradient of the bias of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence

import torch

from ci.gate import choices, gate
from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.lab.post import budget
from helion_sinkhorn.lab.post.workloads import HcPostWorkload
from helion_sinkhorn.ops.mhc.post import eager
from helion_sinkhorn.ops.mhc.post.torch_op import gradient_of_bias
from helion_sinkhorn.ops.mhc.site.boundary.space import MOST_STREAMS
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.runtime.kernel import Choice
from helion_sinkhorn.runtime.launch import device_of

COMPUTES = {"hc_post_forward": ("out",), "hc_post_backward": ("df", "dx", "dpost", "dcomb", "dbias")}
"""The results of each kernel; dbias is the sum over tokens of its df."""
BOUNDARY = {
    "hc_boundary_forward": ("out",),
    "hc_boundary_backward": COMPUTES["hc_post_backward"],
    "hc_boundary_sums": ("dpost", "dcomb"),
}
"""The results of hc_boundary's kernels, which compute more besides."""


def results(workload: HcPostWorkload) -> tuple[str, ...]:
    """What the call has: without a bias no gradient of one."""
    return budget.RESULTS if workload.has_bias else budget.RESULTS[:-1]


def inputs(workload: HcPostWorkload, steps: int) -> tuple[torch.Tensor, ...]:
    """f, x, post, comb, the upstream gradient, and the bias once for each element where there is one."""
    f, x, post, comb, bias, grad = workload.make_inputs()
    given = f, x, post, comb, grad
    return given if bias is None else (*given, bias.expand(len(f), -1))


def dtype_of(workload: HcPostWorkload, name: str) -> torch.dtype:
    if name in ("dpost", "dcomb"):
        return workload.coefficients
    if name == "dbias":
        return torch.float32
    return workload.f_dtype or workload.dtype if name == "df" else workload.dtype


def truths(workload: HcPostWorkload, f, x, post, comb, grad, bias=None) -> dict[str, gate.Truth]:
    """The equations in float64."""
    given = f, x, post, comb, grad, bias, workload.comb_order
    exact, budgets = budget.exact(*given), budget.error_budget(*given)
    found = {}
    for name, t in exact.items():
        dtype = dtype_of(workload, name)
        scale = gate.noticeable(t) if name == "out" else gate.largest(t)
        spread = gate.spread(t, budgets[name], dtype)
        # products and sums round to nearest: no side is preferred, and no two entries share a rounding
        found[name] = gate.Truth(t, budgets[name], spread, scale, 0.0, len(t), (-1,), dtype)
    return found


def candidates(workload: HcPostWorkload, *given: torch.Tensor) -> list[gate.Candidate]:
    """Both kernels with each of their configs; on a CPU the CPU path."""
    order, names = workload.comb_order, results(workload)
    if not given[0].is_cuda:
        return choices.on_cpu(names, on_cpu, order)
    from helion_sinkhorn.ops.mhc.post import launch

    device, tokens = device_of(given[0]), len(given[0]) * workload.tokens
    call = launch.call_for(workload.n, workload.c, workload.dtype)
    found = choices.candidates(
        among(names, COMPUTES), call, tokens, device,
        lambda name, choice: functools.partial(on_gpu, order, name, choice),
    )  # fmt: skip
    return found + by_boundary(workload, device, tokens)


def among(names: Collection[str], computes: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """What each kernel computes, without results that a call has not."""
    return {kernel: [name for name in computed if name in names] for kernel, computed in computes.items()}


def by_boundary(workload: HcPostWorkload, device: Device, tokens: int) -> list[gate.Candidate]:
    """The new streams and every gradient by hc_boundary's kernels, each config, where they take the call."""
    if not 2 <= workload.n <= MOST_STREAMS or workload.c == 1:
        return []
    from helion_sinkhorn.ops.mhc.site.launch import call_for

    call = call_for(workload.n, workload.c, workload.dtype, "float32")
    return choices.candidates(
        among(results(workload), BOUNDARY), call, tokens, device,
        lambda name, choice: functools.partial(crossed, workload.comb_order, call, name, choice),
    )  # fmt: skip


def crossed(
    order: str, call: SiteCall, name: str, choice: Choice, f, x, post, comb, grad, bias=None
) -> torch.Tensor:
    """A result of hc_boundary's kernels; what they collapse and project besides is not looked at."""

    def forward(f, x, post, comb, bias, order):
        return pass_over_streams(order, call, choice, f, x, post, comb, bias)

    def backward(grad, f, x, post, comb, bias, order):
        return pass_back(order, call, choice, grad, f, x, post, comb, bias)

    made = (forward, None) if name == "out" else (None, backward)
    return computed(order, *made, f, x, post, comb, grad, bias)[name]


def pass_over_streams(order: str, call: SiteCall, choice: Choice, f, x, post, comb, bias) -> torch.Tensor:
    """The new streams."""
    from helion_sinkhorn.ops.mhc.site.boundary import launch

    fn = x.new_zeros((call.mixes.m, call.mixes.columns), dtype=torch.float32)
    split = launch.split_of(fn, call)
    return launch.one_pass(f, x, post, comb, bias, post, split, call, order, choice)[0]


def pass_back(order: str, call: SiteCall, choice: Choice, grad, f, x, post, comb, bias) -> tuple:
    """(df, dx, dpost, dcomb): the new streams' gradient is grad, as nothing comes back through a collapse."""
    from helion_sinkhorn.ops.mhc.site.boundary.backward import launch

    like, bias = (f, x, post, comb), None if bias is None else bias.contiguous()
    grad, f, x, post, comb = flat(grad, *like)
    mixes, tokens = call.mixes, len(x)
    g = x.new_zeros((tokens, mixes.parts, mixes.m), dtype=torch.bfloat16)
    choices, fn = {choice.kernel: choice}, x.new_zeros((mixes.m, mixes.columns), dtype=torch.float32)
    split = launch.parts_of_fn(fn, call, x, choices)
    along = x.new_zeros((tokens,), dtype=torch.float32)
    given = grad, None, g, along, x, split, f, x, bias, post, comb, post
    *made, _ = launch.gradients(given, call, order, choices)
    return tuple(t.view(to.shape) for t, to in zip(made, like, strict=True))


def flat(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tokens of all elements one behind the other."""
    return tuple(t.flatten(0, 1).contiguous() for t in given)


def on_cpu(order: str, name: str, *given: torch.Tensor) -> torch.Tensor:
    return computed(order, eager.forward, eager.backward, *given)[name]


def on_gpu(order: str, name: str, choice: object, *given: torch.Tensor) -> torch.Tensor:
    from helion_sinkhorn.ops.mhc.post import launch

    if name in COMPUTES[launch.FORWARD]:
        return computed(order, functools.partial(launch.forward, choice=choice), None, *given)[name]
    return computed(order, None, functools.partial(launch.backward, choice=choice), *given)[name]


def computed(order: str, forward, backward, f, x, post, comb, grad, bias=None) -> gate.Results:
    """The results of these, by a call for all elements, which share a bias; dbias from a sum for each."""
    tensors = f, x, post, comb, None if bias is None else bias[0], order
    found = {"out": forward(*tensors)} if forward else {}
    if backward:
        names = ("df", "dx", "dpost", "dcomb")
        # as the operator calls it for the gradient of a bias
        wide = f if bias is None else f.float()
        found |= dict(zip(names, backward(grad, wide, *tensors[1:]), strict=True))
        if bias is not None:
            found["dbias"] = torch.stack([gradient_of_bias(df) for df in found["df"]]).unsqueeze(1)
            found["df"] = found["df"].to(f.dtype)
    return found
