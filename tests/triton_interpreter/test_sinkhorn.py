"""The Triton code generated from the kernel bodies, tile by tile with its masks, against float64.

`make emulate` compares the bits of splits of a batch, for every kernel.
"""

from __future__ import annotations

import functools

import pytest
import sinkhorn_kernels
import torch
from sinkhorn_case import Case
from sinkhorn_kernels import BACKWARD, BACKWARDS, FORWARD, HISTORY, choice

from ci.gate.runs import Guarded
from helion_sinkhorn.ops.sinkhorn import launch

pytestmark = pytest.mark.usefixtures("as_compiled")
# One program costs a millisecond whatever its block: 13 matrices in blocks of 8 are two programs and a tail
BATCH, BLOCK = 13, {"block_sizes": (8,)}
check = functools.partial(sinkhorn_kernels.check, config=BLOCK)


BY_NIGHT = pytest.mark.nightly("interpreted, 9 s a case")


def some(always, *by_night):
    """Parameters of which some run by night alone."""
    by_night = [v if isinstance(v, tuple) else (v,) for v in by_night]
    return [*always, *(pytest.param(*v, marks=BY_NIGHT) for v in by_night)]


@BY_NIGHT
@pytest.mark.parametrize(("form", "first"), [("log", "cols"), ("deepseek", "rows")])
@pytest.mark.parametrize(("n", "m"), [(3, 5), (1, 1), (3, 3), (1, 7), (8, 2), (7, 2)])
def test_sizes_with_a_tail_of_the_batch(n, m, form, first):
    case = Case("randn_3", n, m, 3, form, first, batch=BATCH)
    check(case, FORWARD, *BACKWARDS)


@pytest.mark.parametrize("form", some(["log"], "deepseek"))
@pytest.mark.parametrize("logits", some(["masked"], "randn_30", "randn_0.01", "identity_like", "permutation"))
@pytest.mark.parametrize(("n", "m"), some([(3, 5)], (4, 4)))
def test_kinds_of_logits(n, m, logits, form):
    # iterations and sides of other tests, which generate this code too
    case = Case(logits, n, m, 3, form, {"log": "cols", "deepseek": "rows"}[form], batch=BATCH)
    check(case, FORWARD, *BACKWARDS)


@BY_NIGHT
@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (2, 4), (4, 1), (2, 2), (0, 0)])
@pytest.mark.parametrize(
    ("form", "pivoted", "lean"),
    [
        ("deepseek", True, True), ("deepseek", True, False), ("deepseek", False, False),
        ("deepseek", False, True), ("log", False, True), ("log", False, False),
    ],
)  # fmt: skip
def test_variants(form, pivoted, lean, rows, columns, paired):
    """The log form has no pivot."""
    variant = {"thread": (rows, columns), "paired": paired, "pivoted": pivoted}
    case = Case("randn_3", 4, 4, 4, form, batch=BATCH)
    check(case, FORWARD, **variant)
    check(case, BACKWARD, **variant, lean=lean)
    if not lean:
        check(case, HISTORY, thread=(rows, columns))


@BY_NIGHT
@pytest.mark.parametrize(
    ("n", "thread", "form"),
    [
        (4, (4, 4), "deepseek"), (4, (4, 4), "log"), (8, (4, 4), "log"), (8, (4, 4), "deepseek"),
        (8, (8, 8), "log"), (8, (2, 8), "log"), (8, (8, 4), "log"),
    ],
)  # fmt: skip
def test_sums_in_order(n, thread, form):
    """The order of a sum in a thread, and over the threads of a line; 20 iterations of 8 x 8 restart once."""
    case = Case("randn_3", n, n, 20, form, batch=BATCH)
    check(case, FORWARD, thread=thread, ordered=True)
    if (n, n) == thread:
        check(case, BACKWARD, thread=thread, ordered=True, length=7)


@BY_NIGHT
@pytest.mark.parametrize(("n_iters", "length"), [(5, 2), (1, 3), (4, 2), (6, 2)])
@pytest.mark.parametrize("n", [4, 3])
def test_segments_of_any_length(n, n_iters, length):
    check(Case("randn_8", n, n, n_iters, batch=BATCH), BACKWARD, length=length)


@BY_NIGHT
@pytest.mark.parametrize(("n", "m", "first"), [(3, 5, "cols"), (4, 4, "rows")])
def test_restarts(n, m, first):
    """One program has the gradients of three scales: its operations take the time, not its matrices."""
    case = Case("randn_8", n, m, 60, "log", first, batch=BATCH)
    sinkhorn_kernels.check(case, FORWARD, config={"block_sizes": (16,)})
    x, dy = case.inputs()
    scales = torch.tensor([1.0, 2.0**-66, 2.0**100]).view(-1, 1, 1, 1)
    selected = choice(case, HISTORY, {"block_sizes": (64,)})
    dx = launch.backward((dy * scales).flatten(0, 1), x.repeat(3, 1, 1), *case.arguments, selected)
    plain, *others = dx.unflatten(0, (3, -1)) / scales
    assert case.judge(dx=plain)["dX"] <= 1
    assert all(torch.equal(other, plain) for other in others)


@pytest.mark.parametrize("batch", some([9], 1, 7, 8, 16))
@pytest.mark.parametrize(("n", "m"), some([(3, 5)], (4, 4)))
def test_nothing_is_written_outside_the_result(n, m, batch):
    # the form, iterations and side of other tests, which generate this code too
    case = Case("randn_3", n, m, 3, "log", "cols", batch=batch)
    x, dy = case.inputs()
    with Guarded() as memory:
        p = launch.forward(x, *case.arguments, torch.float32, choice(case, FORWARD, BLOCK))
        dx = [launch.backward(dy, x, *case.arguments, choice(case, name, BLOCK)) for name in BACKWARDS]
    for result in dx:
        ratios = case.judge(p, result)
        assert max(ratios.values()) <= 1, ratios
    # among others three results, and the scratch of the history kernel: u, v and two of logarithms
    assert len(memory.blocks) >= 7
    assert memory.intact
