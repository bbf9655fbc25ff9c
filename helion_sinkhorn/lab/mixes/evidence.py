"""EVIDENCE of hc_mixes: mixes and dx token by token, dfn element by element.

An element of the batch is a group of tokens, and has its own sum dfn, from its own call.  fn includes the
norm weight, as when the public function calls an operator.  The public function itself is called with a
weight of powers of two, and with fn divided by it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from helion_sinkhorn.lab.draws import noise
from helion_sinkhorn.lab.evidence import Alone, Choices, Evidence, Results, Tensors, by_elements
from helion_sinkhorn.lab.mixes.budget import RESULTS, evaluated
from helion_sinkhorn.lab.mixes.workloads import MixesWorkload
from helion_sinkhorn.lab.row import TRIED
from helion_sinkhorn.lab.truth import Truth
from helion_sinkhorn.ops.mhc.mixes import launch, torch_op
from helion_sinkhorn.ops.mhc.mixes.api import hc_mixes
from helion_sinkhorn.ops.mhc.mixes.space import CHUNK, MixesCall
from helion_sinkhorn.runtime.kernel import Choice
from helion_sinkhorn.runtime.views import parameter, placed

NORM_EPS = 1e-6
COMPUTES = {
    launch.SPLIT: ("mixes",), launch.PARTIALS: ("mixes",), launch.REDUCE: ("mixes",),
    launch.UPSTREAM: ("dx", "dfn"), launch.BACKWARD: ("dx", "dfn"),
}  # fmt: skip


def kernel_calls(workload: MixesWorkload) -> Iterator[tuple[str, Any]]:
    call = launch.call_for(workload.m, workload.columns, workload.dtype, workload.precision)
    for name in launch.KERNELS:
        yield name, call


def of_call(kernel: str, call: MixesCall, tokens: int) -> MixesWorkload:
    dtype, precision = getattr(torch, call.dtype), call.precision
    return MixesWorkload(*TRIED, 1, call.columns, call.m, tokens, dtype, NORM_EPS, precision=precision)


def inputs(workload: MixesWorkload, steps: int, **drawn: Any) -> Tensors:
    """x, the upstream gradient, and fn once for each element."""
    x, fn, weight, dmixes = workload.make_inputs(**drawn)
    fn = fn if weight is None else fn * weight
    return x, dmixes, fn.expand(len(x), -1, -1)


def dtype_of(workload: MixesWorkload, name: str) -> torch.dtype:
    return workload.dtype if name == "dx" else torch.float32


def truths(workload: MixesWorkload, *given: torch.Tensor) -> dict[str, Truth]:
    """The equations in float64."""
    by_name = {}
    for name, e in evaluated(workload, *given).items():
        exact, allowed, leaning = (t.flatten(2) for t in (e.value, e.budget, e.leaning))
        # a token's entries share its norm; all of dfn shares those of its tokens
        together = (-2, -1) if name == "dfn" else (-1,)
        by_name[name] = Truth.of(
            exact, allowed, dtype_of(workload, name), leaning=leaning, together=together
        )  # fmt: skip
    return by_name


def run(workload: MixesWorkload, choices: Choices | None, of: Collection[str], x, dmixes, fn) -> Results:
    """The results by the kernels one after another, each with its choice."""
    forward, backward = eager(workload) if choices is None else launches(workload, choices, fn[0])

    def compute(at: slice) -> Results:
        mixes, norms = forward(x[at], fn[0])
        if {*of} == {"mixes"}:
            return {"mixes": mixes}
        dx, dfn = backward(dmixes[at], x[at], fn[0], mixes, norms)
        return {"mixes": mixes, "dx": dx.flatten(2), "dfn": dfn[None]}

    return by_elements(compute, len(x), of, ("dfn",))


def eager(workload: MixesWorkload) -> tuple[Callable[..., Tensors], Callable[..., Tensors]]:
    """(forward, backward) of the operator without kernels."""

    def forward(x, fn):
        arguments = workload.norm_eps, workload.eps_outside, workload.precision, "pytorch"
        return torch_op.forward(x, fn, *arguments)

    def backward(*tensors):
        return torch_op.backward(*tensors, workload.precision, "pytorch", (True, True))

    return forward, backward


def launches(
    workload: MixesWorkload, choices: Choices, fn: torch.Tensor
) -> tuple[Callable[..., Tensors], Callable[..., Tensors]]:
    """(forward, backward) as the operator launches them, one row of fn with another of zeros."""
    rows = launch.several(parameter(fn), 0)
    call = launch.call_for(len(rows), workload.columns, workload.dtype, workload.precision)

    def forward(x, _):
        lead, streams = torch_op.leading(x, fn), placed(x.reshape(-1, workload.columns))
        split = launch.split(rows, call, choices.get(launch.SPLIT))
        made = launch.partials(streams, split, call.precision, choices.get(launch.PARTIALS))
        norm = workload.norm_eps, workload.eps_outside
        mixes, norms = launch.reduce(made, call, *norm, choices.get(launch.REDUCE))
        return mixes[:, : workload.m].contiguous().view(*lead, workload.m), norms.view(*lead, 2)

    def backward(dmixes, x, _, mixes, norms):
        tokens = (launch.several(t.flatten(0, -2), 1) for t in (dmixes, mixes))
        given = launch.upstream(*tokens, norms.flatten(0, -2), call, choices.get(launch.UPSTREAM))
        streams = placed(x.reshape(-1, workload.columns))
        dx, dfn = launch.gradients(given, streams.unsqueeze(1), rows, call, choices.get(launch.BACKWARD))
        return dx.view(x.shape), dfn[: workload.m]

    return forward, backward


def public(workload: MixesWorkload, of: Collection[str], x, dmixes, fn) -> Results:
    """The results by the public function and autograd, with a norm weight of powers of two."""
    weight = torch.exp2(torch.arange(workload.columns, device=x.device) % 3 - 1.0)

    def compute(at: slice) -> Results:
        leaves = [t.detach().requires_grad_() for t in (x[at], fn[0] / weight)]
        mixes = hc_mixes(*leaves, norm_weight=weight, **workload.options)
        if {*of} == {"mixes"}:
            return {"mixes": mixes.detach()}
        dx, dfn = torch.autograd.grad(mixes, leaves, dmixes[at])
        return {"mixes": mixes.detach(), "dx": dx.flatten(2), "dfn": (dfn / weight)[None]}

    return by_elements(compute, len(x), of, ("dfn",))


def call_public(workload: MixesWorkload, empty: Callable[..., torch.Tensor]) -> None:
    x = empty(workload.batch, workload.n, workload.c, dtype=workload.dtype)
    fn = empty(workload.m, workload.columns)
    hc_mixes(x.flatten(-2), fn, implementation="helion", **workload.options)


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
    (x,) = noise(device, call.dtype, (batch, call.columns))
    return g.to(torch.bfloat16), along, x, *fn_alone(call, batch, device)


def run_reduce(call: MixesCall, choice: Choice, made, squares) -> Tensors:
    return launch.reduce(launch.Partials(made, squares), call, NORM_EPS, False, choice)


def run_backward(call: MixesCall, choice: Choice, g, along, x, fn) -> Tensors:
    return launch.gradients(launch.Upstream(g, along), x.unsqueeze(1), fn, call, choice)


EVIDENCE = Evidence(
    "hc_mixes",
    MixesWorkload,
    launch.KERNELS,
    COMPUTES,
    kernel_calls,
    of_call,
    lambda workload: RESULTS,
    inputs,
    truths,
    run,
    call_public,
    judged=80,
    same_bits=frozenset({"mixes", "dx"}),
    public=public,
    by_public=lambda workload, on_gpu: RESULTS if on_gpu else (),
    alone={
        launch.SPLIT: Alone(fn_alone, lambda call, choice, fn: launch.split(fn, call, choice)),
        launch.PARTIALS: Alone(
            x_and_parts, lambda call, choice, *given: launch.partials(*given, call.precision, choice)
        ),
        launch.REDUCE: Alone(chunks, run_reduce),
        launch.UPSTREAM: Alone(
            mixes_and_gradient, lambda call, choice, *given: launch.upstream(*given, call, choice)
        ),
        launch.BACKWARD: Alone(parts_and_x, run_backward),
    },
    fixed=("tokens", "norm_eps", "norm_weight", "eps_outside"),
)
