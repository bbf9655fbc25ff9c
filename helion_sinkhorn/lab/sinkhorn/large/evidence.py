"""EVIDENCE of large matrices: P and its gradients within what rounding leaves of exponents and sums."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import torch

from helion_sinkhorn.lab.draws import noise
from helion_sinkhorn.lab.evidence import Alone, Choices, Evidence, Results, Tensors, all_inputs
from helion_sinkhorn.lab.rounding import UNIT, Rounding
from helion_sinkhorn.lab.sinkhorn.large.budget import RESULTS, error_budget, exact
from helion_sinkhorn.lab.sinkhorn.large.workloads import LargeWorkload
from helion_sinkhorn.lab.truth import Truth
from helion_sinkhorn.ops.sinkhorn.api import sinkhorn
from helion_sinkhorn.ops.sinkhorn.large import eager, launch
from helion_sinkhorn.ops.sinkhorn.large.calls import KERNELS, WHOLE, Calls, call_for, for_kernel, form_of
from helion_sinkhorn.ops.sinkhorn.large.sides import Matrices
from helion_sinkhorn.ops.sinkhorn.large.space import LargeCall
from helion_sinkhorn.ops.sinkhorn.large.terms import filled, segment_of
from helion_sinkhorn.runtime.kernel import Choice
from helion_sinkhorn.runtime.launch import NO_CHOICES

PREFIX = "sinkhorn_large_"
ADJOINTS = {
    "sums", "turn", "back", "apart_back", "gather", "left", "right", "terms", "gradient", "wide_gradient",
    "eps_sums", "eps_turn", "eps_back",
}  # fmt: skip
BOTH = {"wide_rows", "wide_columns"}
"""Products of either way."""
GRADIENTS = "dX", "drows", "dcolumns"
JUDGED_ROWS = 32
"""Rows of matrices with which kernels of long lines are tested; whole ones would take 40 GB in float64."""
MOST_JUDGED_ROWS = 2048
"""Rows of matrices with which the others are tested, for the same reason: DINO's have 98304."""
LAUNCHED = {
    (False, False):
        "first step columns columns_of_logs write sums turn back gather left right terms gradient",
    (True, False):
        "eps_first eps_step eps_columns eps_write eps_sums eps_turn eps_back left right terms gradient",
    (False, True): "wide_first wide_logs wide_rows wide_columns write left right terms wide_gradient",
    (True, True): "wide_first wide_rows wide_columns eps_write left right terms wide_gradient",
}  # fmt: skip
"""The kernels of a call, by whether it has eps and whether its lines are long."""


def call_of(workload: LargeWorkload) -> LargeCall:
    n, m, turned = workload.n, workload.m, workload.first == "cols"
    return call_for(*((m, n) if turned else (n, m)), workload.dtype, turned)


def whole(kernel: str, call: LargeCall) -> LargeCall:
    """The call on matrices for which a kernel gets its own."""
    return replace(call, m=call.m + 1) if kernel in WHOLE else call


def kernel_calls(workload: LargeWorkload) -> Iterator[tuple[str, Any]]:
    call = call_of(workload)
    for short in LAUNCHED[workload.eps > 0, workload.wide].split():
        name, _ = form_of(PREFIX + short, call)
        yield name, for_kernel(name, call)


def of_call(kernel: str, call: LargeCall, batch: int) -> LargeWorkload:
    dtype, form = getattr(torch, call.dtype), "deepseek" if "_eps_" in kernel else "log"
    call = whole(kernel, call)
    n, longest = min(call.n, MOST_JUDGED_ROWS), launch.LONGEST
    if "_wide_" in kernel or call.m > longest:
        n, longest = min(n, JUDGED_ROWS), 0
    sizes, first = ((call.m, n), "cols") if call.turned else ((n, call.m), "rows")
    return LargeWorkload(
        "tried", *sizes, batch, frozenset(), "a trial", first=first, dtype=dtype, spread=1.0, form=form,
        longest=longest,
    )  # fmt: skip


def truths(workload: LargeWorkload, x: torch.Tensor, *given: torch.Tensor) -> dict[str, Truth]:
    """The equations in float64."""
    *marginals, dy = given
    values = exact(x, marginals, dy, **workload.options)
    budgets = error_budget(x, marginals, dy, **workload.options, truth=values)
    dtypes = {"P": workload.dtype, "dX": workload.dtype}
    # the lines normalised last, each by its own sum
    trail = (-2 if workload.first == "rows" else -1,)
    return {
        name: Truth.of(
            t, budgets[name], dtypes.get(name, torch.float32), gradient=name != "P",
            # exponentials that err to one side by their bound: those of a sum cancel with one of an entry
            leaning=Rounding.EXP * UNIT * t.abs(), together=trail if t.dim() == 3 else (-1,),
        )
        for name, t in values.items()
    }  # fmt: skip


def run(
    workload: LargeWorkload, choices: Choices | None, of: Collection[str], x: torch.Tensor, *others
) -> Results:
    """P by a call, and the gradients by a call on what it kept."""
    gradients = bool({*GRADIENTS} & {*of})
    *marginals, dy = others
    given = Matrices(x, *(marginals or (None, None)), workload.eps, workload.first)
    own = {} if choices is None else {"choices": choices or NO_CHOICES, "longest": workload.longest}
    module = launch if own else eager
    p, _, _, *kept = module.forward(given, workload.n_iters, gradients, workload.dtype, **own)
    results = {"P": p}
    if gradients:
        made = module.backward(dy, None, None, given, *kept, **own)
        results |= dict(zip(GRADIENTS, made, strict=True))
    return {name: results[name] for name in of}


def _shapes(call: LargeCall, batch: int) -> dict[str, tuple[int, ...]]:
    rows, columns = (batch, call.n), (batch, call.m)
    length = segment_of(call.n, call.m)
    segments, n, m = (3, 2 * length), filled(call.n), filled(call.m)
    sums = -(-call.n // 8) if call.m <= launch.LONGEST else 0
    return {
        "rows": rows, "columns": columns, "scale": (1,),
        "parts": (batch, max(2, sums), call.m),
        "left": (batch, *segments, n), "right": (batch, *segments, m),
        "rows_of_all": (3 * length * batch, call.n), "columns_of_all": (3 * length * batch, call.m),
        "base_f": (batch, segments[0], n), "base_g": (batch, segments[0], m),
    }  # fmt: skip


OPERANDS = {
    "sinkhorn_large_first": "matrix scale rows rows rows parts",
    "sinkhorn_large_step": "matrix scale rows rows rows columns columns rows rows",
    "sinkhorn_large_columns": "parts columns columns columns columns",
    "sinkhorn_large_columns_of_logs": "parts parts columns columns columns",
    "sinkhorn_large_write": "matrix scale rows rows columns columns matrix",
    "sinkhorn_large_sums": "matrix matrix scale rows rows columns columns columns",
    "sinkhorn_large_turn": "matrix matrix scale rows rows rows rows columns columns columns columns rows",
    "sinkhorn_large_back": "matrix scale rows rows rows columns columns columns rows",
    "sinkhorn_large_gather": "parts columns columns columns columns",
    "sinkhorn_large_left": "rows_of_all rows_of_all rows_of_all base_f base_f left",
    "sinkhorn_large_right": "columns_of_all columns_of_all columns_of_all base_g right",
    "sinkhorn_large_terms": "matrix matrix scale columns base_f base_f base_g left right exact",
    "sinkhorn_large_gradient": "matrix exact scale rows rows rows rows rows matrix",
    "sinkhorn_large_eps_first": "matrix rows rows",
    "sinkhorn_large_eps_step": "matrix rows rows rows columns rows",
    "sinkhorn_large_eps_columns": "parts columns columns columns",
    "sinkhorn_large_eps_write": "matrix rows rows rows columns matrix",
    "sinkhorn_large_eps_sums": "matrix matrix rows rows rows",
    "sinkhorn_large_eps_turn": "matrix matrix rows rows rows columns columns columns rows",
    "sinkhorn_large_eps_back": "matrix rows rows rows columns rows rows",
    "sinkhorn_large_wide_first": "matrix scale rows rows",
    "sinkhorn_large_wide_logs": "matrix scale rows rows columns columns",
    "sinkhorn_large_wide_rows": "matrix matrix scale rows rows columns columns columns rows",
    "sinkhorn_large_wide_columns": "matrix matrix scale rows rows columns rows columns columns",
    "sinkhorn_large_wide_gradient": "matrix exact scale rows rows rows rows rows matrix",
}  # fmt: skip
"""What each kernel takes, by the names of `_shapes`; the last one is written, and what follows of a kernel of
rows are parts."""
NUMBERS: dict[str, tuple[Any, ...]] = {
    "sinkhorn_large_gather": (True,), "sinkhorn_large_eps_columns": (True,),
    "sinkhorn_large_left": (False,), "sinkhorn_large_right": (False,),
    "sinkhorn_large_terms": (False,), "sinkhorn_large_gradient": (False,),
    "sinkhorn_large_wide_gradient": (False,),
    "sinkhorn_large_wide_rows": (False, False), "sinkhorn_large_wide_columns": (False, False),
}  # fmt: skip
"""The last values of a launch."""


def alone(name: str) -> Alone:
    """One launch of a kernel by itself."""
    given_name = WHOLE.get(name, name)
    kinds = OPERANDS[given_name].split()

    def matrix(call: LargeCall, batch: int, device: str, dtype: str) -> torch.Tensor:
        shape = (batch, call.m, call.n) if call.turned else (batch, call.n, call.m)
        (x,) = noise(device, dtype, shape)
        return x.mT if call.turned else x

    def operands(call: LargeCall, batch: int, device: str) -> Tensors:
        call = whole(name, call)
        shapes = _shapes(call, batch)
        return tuple(
            noise(device, "float32", shapes[kind])[0]
            if kind in shapes
            else matrix(call, batch, device, call.dtype if kind == "matrix" else "float32")
            for kind in kinds
        )

    def run_it(call: LargeCall, choice: Choice, *given: torch.Tensor) -> torch.Tensor:
        # a kernel whose matrix is not its first argument has none
        x = given[0] if kinds[0] == "matrix" else given[0].new_empty((len(given[-1]), call.n, 1))
        calls = Calls(x, {name: choice}, whole(name, call))
        numbers = (1e-6, 1.0)[: KERNELS[name].numbers]
        if "rows" in dict(choice.variant):
            return calls.rows(given_name, *given, values=numbers)
        sizes = given[kinds.index("right")].shape[1:3] if {"left", "right"} <= {*kinds} else ()
        if kinds[0].endswith("of_all"):
            sizes = len(given[0]) // len(given[-1]), given[-1].size(1), given[-1].size(2) // 2
        count = (given[0].size(1),) if kinds[0] == "parts" else ()
        calls.launch(name, *given, values=(*numbers, *count, *sizes, *NUMBERS.get(name, ())))
        return given[-1]

    return Alone(operands, run_it)


def results_of(kernel: str) -> tuple[str, ...]:
    """The results that show what a kernel did."""
    return RESULTS if kernel in BOTH else GRADIENTS if kernel in ADJOINTS else ("P",)


def call_public(workload: LargeWorkload, empty: Callable[..., torch.Tensor]) -> None:
    sizes = workload.batch, workload.n, workload.m
    sinkhorn(empty(*sizes, dtype=workload.dtype), implementation="helion", **workload.options)


EVIDENCE = Evidence(
    "sinkhorn_large",
    LargeWorkload,
    KERNELS,
    {name: results_of(name.removeprefix(PREFIX)) for name in KERNELS},
    kernel_calls,
    of_call,
    lambda workload: RESULTS[:2] if workload.eps else RESULTS,
    all_inputs,
    truths,
    run,
    call_public,
    judged=2,
    alone={name: alone(name) for name in KERNELS},
    judged_apart=frozenset(name for name in KERNELS if "_wide_" in name),
    fixed=("n_iters", "first", "logits", "spread", "longest"),
)
