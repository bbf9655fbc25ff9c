"""The Triton code generated from the implicit kernels, tile by tile with its masks, against float64."""

from __future__ import annotations

import pytest
import torch

from helion_sinkhorn import reference
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.draws import make_cotangents
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.lab.sinkhorn.implicit.budget import Stationarity
from helion_sinkhorn.lab.sinkhorn.logits import make_logits
from helion_sinkhorn.ops.sinkhorn import launch
from helion_sinkhorn.ops.sinkhorn.implicit import launch as implicit_launch
from helion_sinkhorn.runtime import launch as door

BATCH, BLOCK = 13, 8


def error(n, m, system, solver, logits="randn_1", n_iters=20, batch=BATCH, **variant):
    """The kernel's largest error against the same equations in float64, in units of its budget."""
    x = make_logits(logits, batch, n, m, dtype=torch.float64)
    p = reference.sinkhorn(x, n_iters, form="log").float()
    dy = make_cotangents(p)
    call = implicit_launch.implicit_call(n, m, p.dtype, n_iters)
    chosen = door.choose(KERNELS[f"sinkhorn_implicit_{solver}"], call, batch, DEVICES["h200"])
    config = {**dict(chosen.config), "block_sizes": (BLOCK,)}
    chosen = type(chosen)(chosen.kernel, tuple(sorted(config.items())), chosen.variant, "a test")
    chosen = launch.with_variant(chosen, **variant)
    got = implicit_launch.implicit_backward(dy, p, n_iters, system, solver, torch.float32, chosen)
    # by elimination the full system is the reduced one
    equations = Stationarity(p, dy, "reduced" if (system, solver) == ("full", "direct") else system)
    return worst(got, equations.exact, equations.error_budget(solver, torch.float32))


SOLVERS = "direct", "cg"
OTHERS = [
    *((n, n, "corrected", "direct", {"logits": logits})
      for logits in ("randn_8", "identity_like", "masked", "permutation") for n in (3, 4)),
    *((3, 3, system, solver, {"n_iters": 5}) for system in ("reduced", "full") for solver in SOLVERS),
    *((n, n, "corrected", solver, {"batch": 1}) for n in (3, 4) for solver in SOLVERS),
    *((*sizes, system, "cg", {"thread": thread})
      for *sizes, thread in ((8, 8, (8, 8)), (8, 8, (8, 4)), (8, 8, (4, 4)), (16, 8, (8, 4)), (8, 16, (8, 4)))
      for system in ("corrected", "reduced", "full")),
]  # fmt: skip
"""Kinds of logits, systems for comparison, one matrix, and matrices over threads."""
SIZES = (1, 1), (3, 3), (4, 4), (5, 3), (2, 7)


@pytest.mark.parametrize(
    ("n", "m", "system", "solver", "options"),
    [*((*size, "corrected", solver, {}) for size in SIZES for solver in SOLVERS), *OTHERS],
    ids=str,
)
def test_within_the_budget_with_a_tail_of_the_batch(n, m, system, solver, options):
    assert error(n, m, system, solver, **options) <= 1


@pytest.mark.parametrize("system", ["corrected", "full"])
def test_any_scale_of_the_upstream_gradient(system):
    """The power of two that is divided out comes from the bits of the largest entry, without padding."""
    p = reference.sinkhorn(make_logits("randn_1", BATCH, 3, 3), 20, form="log").float()
    dy = make_cotangents(p)
    dx = implicit_launch.implicit_backward(dy, p, 20, system, "cg", torch.float32)
    for scale in (2.0**-100, 2.0**100):
        scaled = implicit_launch.implicit_backward(dy * scale, p, 20, system, "cg", torch.float32)
        assert torch.equal(scaled / scale, dx)
