"""The compiled kernels of chunked linear attention on a GPU, against the recurrence in float64."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from test_linear_attention_chunked import problem, run

from helion_sinkhorn.linear_attention_error import chunked_budgets, truth
from helion_sinkhorn.testing import half_ulp, worst

pytestmark = pytest.mark.gpu

CASES = {
    "gla": ((2, 300, 2, 64, 128, "gk", 1.0, True, torch.bfloat16), False),
    "decays_fast": ((2, 300, 2, 64, 128, "gk", 30.0, True, torch.bfloat16), True),
    "every_gate": ((1, 150, 3, 24, 20, "g g_gamma gk", 1.0, True, torch.float32), True),
    "retention": ((1, 150, 1, 5, 3, "g_gamma", 0.1, True, torch.float32), False),
    "no_gate": ((1, 100, 2, 100, 36, "", 1.0, False, torch.bfloat16), True),
    "smallest": ((2, 2, 1, 1, 1, "gk", 1.0, True, torch.float32), False),
    "half": ((2, 200, 2, 64, 64, "g", 0.1, True, torch.float16), False),
    "float32": ((1, 300, 2, 64, 128, "gk", 0.06, True, torch.float32), False),
}


@pytest.mark.parametrize("name", CASES)
def test_within_budget_and_reproducible(name):
    case, reverse = CASES[name]
    inputs, do, dend = problem(*case)

    def on_gpu():
        moved = {n: x.cuda() for n, x in inputs.items()}
        return run(moved, do.cuda(), None if dend is None else dend.cuda(), 0.3, reverse)

    actual, again = on_gpu(), on_gpu()
    exact = truth(inputs, do, dend, scale=0.3, reverse=reverse)
    operand = "bfloat16" if case[-1] == torch.bfloat16 else "float32"
    budgets = chunked_budgets(inputs, do, dend, 64, operand, scale=0.3, reverse=reverse)
    ratios = {n: worst(x, exact[n], budgets[n] + half_ulp(exact[n], x.dtype)) for n, x in actual.items()}
    assert max(ratios.values()) <= 1, ratios
    assert all(torch.equal(x, again[n]) for n, x in actual.items())
