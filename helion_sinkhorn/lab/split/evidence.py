"""EVIDENCE of hc_split_sinkhorn: coefficients and every gradient, sums over tokens among them.

An element of the batch is a group of tokens: each has sums of its own, dbase and dscale, from its own call.
Results are tested as matrices; those that are vectors are matrices of one row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from helion_sinkhorn.lab.draws import noise
from helion_sinkhorn.lab.evidence import Alone, Choices, Evidence, Results, Tensors, by_elements, given
from helion_sinkhorn.lab.rounding import SAMPLES, half_ulp
from helion_sinkhorn.lab.row import TRIED
from helion_sinkhorn.lab.sinkhorn.budget import LAST_PLACES, SMALLEST_NORMAL
from helion_sinkhorn.lab.split.budget import RESULTS, error_budget, exact, model
from helion_sinkhorn.lab.split.workloads import HcWorkload
from helion_sinkhorn.lab.truth import Peer, Systematic, Truth, largest_error, one_sided, spread
from helion_sinkhorn.ops.mhc.split import eager, launch, reference
from helion_sinkhorn.ops.mhc.split.api import hc_split_sinkhorn
from helion_sinkhorn.ops.mhc.split.options import CoefficientGradients
from helion_sinkhorn.ops.mhc.split.space import HcCall
from helion_sinkhorn.ops.sinkhorn.space import TUNED_EPS
from helion_sinkhorn.runtime.kernel import Choice

VALUES, SUMS = RESULTS[:3], ("dbase", "dscale")
JUDGED_TOKENS = 64
TRIED_SPLITS = 8
"""Partial sums of the mixes."""


def kernel_calls(workload: HcWorkload) -> Iterator[tuple[str, Any]]:
    call = launch.call_for(workload.n, workload.n_iters, workload.eps, workload.dtype)
    yield launch.REDUCED if workload.splits else launch.FORWARD, call
    yield launch.BACKWARD, call


def of_call(kernel: str, call: HcCall, tokens: int) -> HcWorkload:
    """With an mHC model's constants."""
    return HcWorkload(
        *TRIED, call.n, tokens, call.n_iters, TUNED_EPS if call.deepseek else 0.0,
        getattr(torch, call.dtype), splits=TRIED_SPLITS if kernel == launch.REDUCED else 0,
    )  # fmt: skip


def inputs(workload: HcWorkload, steps: int, **drawn: Any) -> Tensors:
    """mixes, the three upstream gradients, and scale and base once for each element."""
    mixes, scale, base, *gradients = workload.make_inputs(**drawn)
    return mixes, *gradients, scale.expand(len(mixes), -1), base.expand(len(mixes), -1)


def dtype_of(workload: HcWorkload, name: str) -> torch.dtype:
    return workload.dtype if name == "dmixes" else torch.float32


def truths(workload: HcWorkload, *given: torch.Tensor) -> dict[str, Truth]:
    """The equations in float64."""
    values, budgets = exact(workload, *given), error_budget(workload, *given)
    spreads = {k: spread(values[k], budgets[k], dtype_of(workload, k)) for k in values}
    wide = [t.double() for t in given]
    runs = (model(workload, *wide, Systematic(seed)) for seed in range(SAMPLES))
    most = one_sided(runs, values, spreads)
    peer = {"dmixes": peer_of_gradient(workload, values["dmixes"], *given)}
    return {
        k: Truth.of(
            t, budgets[k], dtype_of(workload, k), gradient=k not in VALUES,
            # A token's entries share its sums, and sums over tokens those of all.  What tokens share, the
            # errors of their parameters, goes to one side at most as far as `most` has it.
            systematic=most[k], together=tuple(range(1 if k in SUMS else 2, t.dim())), peer=peer.get(k),
        )
        for k, t in values.items()
    }  # fmt: skip


def peer_of_gradient(workload: HcWorkload, exact: torch.Tensor, mixes, *given: torch.Tensor) -> Peer:
    """The error of float32 PyTorch's autograd of the specification for dmixes, relative to a token's largest
    entry."""
    *gradients, scale, base = given
    leaf = mixes.detach().clone().float().requires_grad_()
    of_mixes, options = workload.given(leaf)
    out = reference.hc_split_sinkhorn(of_mixes, scale[0].float(), base[0].float(), **options)
    dmixes = torch.autograd.grad(out, leaf, [t.float() for t in gradients])[0].to(workload.dtype)
    size = exact.abs().amax(-1, keepdim=True).clamp_min(SMALLEST_NORMAL)
    floor = LAST_PLACES + (half_ulp(exact, workload.dtype) / size).amax((-2, -1))
    return Peer(size, torch.maximum(largest_error(dmixes, exact, size), floor), floor)


def run(
    workload: HcWorkload, choices: Choices | None, of: Collection[str], mixes, *others: torch.Tensor
) -> Results:
    """What belongs to tokens by one call for all elements, sums by a call for each."""
    *gradients, scale, base = others
    if choices is None:
        forward, backward = eager_forward, eager.backward
    else:
        forward = functools.partial(launch_forward, choices)
        backward = functools.partial(launch.backward, choice=choices.get(launch.BACKWARD))

    def compute(at: slice) -> Results:
        of_mixes, norms, results = mixes[at], None, {}
        if {*of} & {*VALUES} or workload.splits:
            *values, of_mixes, norms = forward(workload, of_mixes, scale[0], base[0])
            results = dict(zip(VALUES, values, strict=True))
        if not {*of} - {*VALUES}:
            return results
        dpre, dpost, dcomb = (t[at] for t in gradients)
        upstream = CoefficientGradients(*given(workload.unused, dpre=dpre, dpost=dpost, dcomb=dcomb))
        dmixes, sums = backward(upstream, of_mixes, scale[0], base[0], workload.arguments)
        # tensors of their own, as every result is
        dbase, dscale = (t.clone()[None, None] for t in sums.split((workload.columns, 3)))
        dmixes = dmixes if norms is None else of_partials(workload, dmixes, of_mixes, norms)
        return results | {"dmixes": dmixes, "dbase": dbase, "dscale": dscale}

    return by_elements(compute, len(mixes), of, SUMS)


def eager_forward(workload: HcWorkload, mixes, scale, base) -> tuple[torch.Tensor | None, ...]:
    """(pre, post, comb, mixes, norms) of the CPU path; norms are None unless there are partial sums."""
    norms = None
    if workload.splits:
        partials, squares = workload.parts(mixes)
        mixes, norms = eager.reduce(partials, workload.reduce(squares))
    return *eager.forward(mixes, scale, base, workload.arguments, torch.float32), mixes, norms


def launch_forward(
    choices: Choices, workload: HcWorkload, mixes, scale, base
) -> tuple[torch.Tensor | None, ...]:
    """The results of `eager_forward` by a kernel; partial sums have the tokens first, as in hc_mixes."""
    given = scale, base, workload.arguments, torch.float32
    if not workload.splits:
        return *launch.forward(mixes, *given, choices.get(launch.FORWARD)), mixes, None
    partials, squares = workload.parts(mixes)
    partials = partials.movedim(0, -2).contiguous().movedim(-2, 0)
    squares = squares.movedim(0, -1).contiguous().movedim(-1, 0)
    return launch.forward_reduced(partials, workload.reduce(squares), *given, choices.get(launch.REDUCED))


def of_partials(workload: HcWorkload, dmixes, mixes, norms) -> torch.Tensor:
    """The gradient of partial sums and squares, as `make_inputs` has them, from that of the mixes."""
    w = workload
    dpartials, dsquares = eager.reduce_backward(dmixes, None, mixes, norms, w.splits, w.size, w.eps_outside)
    return torch.cat([dpartials, dsquares.unsqueeze(-1)], -1).movedim(0, -3).contiguous()


def call_public(workload: HcWorkload, empty: Callable[..., torch.Tensor]) -> None:
    columns, tokens = workload.columns, (workload.batch, workload.tokens)
    mixes, options = empty(*tokens, columns, dtype=workload.dtype), workload.options
    if workload.splits:
        mixes, squares = empty(workload.splits, *tokens, columns), empty(workload.splits, *tokens)
        options = {**options, "reduce": workload.reduce(squares)}
    hc_split_sinkhorn(mixes, empty(3), empty(columns), implementation="helion", **options)


def partials_and_parameters(call: HcCall, batch: int, device: str) -> Tensors:
    """With the tokens first, as hc_mixes makes them."""
    columns = call.n * (call.n + 2)
    shapes = (batch, TRIED_SPLITS, columns), (batch, TRIED_SPLITS), (3,), (columns,)
    partials, squares, scale, base = noise(device, "float32", *shapes)
    size = of_call(launch.REDUCED, call, JUDGED_TOKENS).size
    return partials, squares.square() * (size / TRIED_SPLITS), scale, base


def run_reduced(call: HcCall, choice: Choice, partials, squares, scale, base) -> Tensors:
    workload = of_call(launch.REDUCED, call, JUDGED_TOKENS)
    parts = partials.movedim(1, 0), workload.reduce(squares.movedim(1, 0))
    return launch.forward_reduced(*parts, scale, base, workload.arguments, torch.float32, choice)


EVIDENCE = Evidence(
    "hc_split_sinkhorn",
    HcWorkload,
    launch.KERNELS,
    {launch.FORWARD: VALUES, launch.REDUCED: VALUES, launch.BACKWARD: RESULTS[3:]},
    kernel_calls,
    of_call,
    lambda workload: RESULTS,
    inputs,
    truths,
    run,
    call_public,
    judged=JUDGED_TOKENS,
    same_bits=frozenset(RESULTS[:4]),
    alone={launch.REDUCED: Alone(partials_and_parameters, run_reduced)},
    fixed=("tokens", "eps", "post_mult", "post_eps", "comb_order", "size", "norm_eps", "eps_outside"),
)
