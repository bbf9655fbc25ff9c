"""EVIDENCE of hc_post: the new streams and every gradient, that of the bias among them.

An element of the batch is a group of tokens: each has a gradient of the bias of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from helion_sinkhorn.lab.evidence import Choices, Evidence, Results, Tensors, paths
from helion_sinkhorn.lab.post.budget import RESULTS, error_budget, exact
from helion_sinkhorn.lab.post.workloads import HcPostWorkload
from helion_sinkhorn.lab.row import TRIED
from helion_sinkhorn.lab.truth import Truth
from helion_sinkhorn.ops.mhc.post import eager, launch
from helion_sinkhorn.ops.mhc.post.api import hc_post
from helion_sinkhorn.ops.mhc.post.space import PostCall
from helion_sinkhorn.ops.mhc.post.torch_op import gradient_of_bias
from helion_sinkhorn.ops.mhc.site import launch as site
from helion_sinkhorn.ops.mhc.site.boundary import launch as boundary
from helion_sinkhorn.ops.mhc.site.boundary.backward import launch as boundary_backward
from helion_sinkhorn.ops.mhc.site.boundary.space import MOST_STREAMS
from helion_sinkhorn.runtime.updates import Update

GRADIENTS = ("df", "dx", "dpost", "dcomb")
BOUNDARY = {
    boundary.FORWARD: ("out",),
    boundary_backward.BACKWARD: RESULTS[1:],
    boundary_backward.SECOND: RESULTS[1:],
    boundary_backward.SUMS: ("dpost", "dcomb"),
}
"""The results of hc_boundary's kernels, which compute more besides."""


def kernel_calls(workload: HcPostWorkload) -> Iterator[tuple[str, Any]]:
    call = launch.call_for(workload.n, workload.c, workload.dtype)
    yield launch.FORWARD, call
    yield launch.BACKWARD, call


def boundary_calls(workload: HcPostWorkload) -> Iterator[tuple[str, Any]]:
    """hc_boundary's kernels, where they take the call."""
    if 2 <= workload.n <= MOST_STREAMS and workload.c > 1:
        call = site.call_for(workload.n, workload.c, workload.dtype, "float32")
        yield from ((name, call) for name in BOUNDARY)


def of_call(kernel: str, call: PostCall, tokens: int) -> HcPostWorkload:
    dtype = getattr(torch, call.dtype)
    return HcPostWorkload(*TRIED, call.n, call.columns, tokens, dtype)


def results(workload: HcPostWorkload) -> tuple[str, ...]:
    """Without a bias there is no gradient of one."""
    return RESULTS if workload.has_bias else RESULTS[:-1]


def inputs(workload: HcPostWorkload, steps: int, **drawn: Any) -> Tensors:
    """f, x, post, comb, the upstream gradient, and the bias once for each element where there is one."""
    f, x, post, comb, bias, grad = workload.make_inputs(**drawn)
    given = f, x, post, comb, grad
    return given if bias is None else (*given, bias.expand(len(f), -1))


def dtype_of(workload: HcPostWorkload, name: str) -> torch.dtype:
    if name in ("dpost", "dcomb"):
        return workload.coefficients
    if name == "dbias":
        return torch.float32
    return workload.f_dtype or workload.dtype if name == "df" else workload.dtype


def truths(workload: HcPostWorkload, f, x, post, comb, grad, bias=None) -> dict[str, Truth]:
    """The equations in float64."""
    given = f, x, post, comb, grad, bias, workload.comb_order
    # products and sums round to nearest: no side is preferred, and no two entries share a rounding
    budgets = error_budget(*given)
    return {
        name: Truth.of(t, budgets[name], dtype_of(workload, name), gradient=name != "out")
        for name, t in exact(*given).items()
    }


def run(
    workload: HcPostWorkload, choices: Choices | None, of: Collection[str], *inputs: torch.Tensor
) -> Results:
    """By a call for all elements, which share a bias; dbias from a sum for each."""
    *tensors, grad = inputs[:5]
    bias = inputs[5][0] if len(inputs) > 5 else None
    update = Update(*tensors, bias)
    if choices and choices.keys() & BOUNDARY.keys():
        call = site.call_for(workload.n, workload.c, workload.dtype, "float32")
        forward = functools.partial(pass_over_streams, call, choices)
        backward = functools.partial(pass_back, call, choices)
    else:
        forward, backward = paths(choices, eager, launch)
    by_name = {"out": forward(update, workload.comb_order)} if "out" in of else {}
    if {*of} - {"out"}:
        # as the operator calls it for the gradient of a bias
        wide = update if bias is None else update._replace(f=update.f.float())
        by_name |= dict(zip(GRADIENTS, backward(grad, wide, workload.comb_order), strict=True))
        if "dbias" in of:
            by_name["dbias"] = torch.stack([gradient_of_bias(df) for df in by_name["df"]]).unsqueeze(1)
        by_name["df"] = by_name["df"].to(update.f.dtype)
    return {name: by_name[name] for name in of}


def pass_over_streams(call: site.SiteCall, choices: Choices, update: Update, order: str) -> torch.Tensor:
    """The new streams by hc_boundary's kernel, whose collapse and projection are ignored."""
    fn = update.x.new_zeros((call.mixes.m, call.mixes.columns), dtype=torch.float32)
    split = boundary.split_of(fn, call)
    choice = choices.get(boundary.FORWARD)
    return boundary.one_pass(update, update.post, split, call, order, choice)[0]


def pass_back(call: site.SiteCall, choices: Choices, grad, update: Update, order: str) -> Tensors:
    """(df, dx, dpost, dcomb): the new streams' gradient is grad, as nothing comes back through a collapse."""
    *like, bias = update
    bias = None if bias is None else bias.contiguous()
    # the tokens of all elements one after the other
    grad, f, x, post, comb = (t.flatten(0, 1).contiguous() for t in (grad, *like))
    mixes = call.mixes
    g = x.new_zeros((len(x), mixes.parts, mixes.m), dtype=torch.bfloat16)
    fn = x.new_zeros((mixes.m, mixes.columns), dtype=torch.float32)
    second = boundary_backward.SECOND in choices
    kernel = boundary_backward.KERNELS[boundary_backward.SECOND if second else boundary_backward.BACKWARD]
    pass_of, together = boundary_backward.Pass(kernel, call, order).as_chosen(x, choices)
    split = boundary_backward.parts_of_fn(fn, call, together)
    along = x.new_zeros((len(x),), dtype=torch.float32)
    given = boundary_backward.Given(grad, None, g, along, x, split, f, x, bias, post, comb, post)
    *made, _ = boundary_backward.gradients(given, pass_of, (True,) * 4 + (not second,), choices)
    return tuple(t.view(to.shape) for t, to in zip(made, like, strict=True))


def call_public(workload: HcPostWorkload, empty: Callable[..., torch.Tensor]) -> None:
    batch, n, c, dtype = workload.batch, workload.n, workload.c, workload.dtype
    streams = empty(batch, c, dtype=dtype), empty(batch, n, c, dtype=dtype)
    hc_post(*streams, empty(batch, n), empty(batch, n, n), implementation="helion", **workload.options)


EVIDENCE = Evidence(
    "hc_post",
    HcPostWorkload,
    launch.KERNELS,
    {launch.FORWARD: ("out",), launch.BACKWARD: RESULTS[1:], **BOUNDARY},
    kernel_calls,
    of_call,
    results,
    inputs,
    truths,
    run,
    call_public,
    same_bits=frozenset(RESULTS[:-1]),
    others=boundary_calls,
    fixed=("tokens", "coefficients", "has_bias", "comb_order"),
)
