"""torch.jit.trace: refused by every function and module, which could not be right for another size."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import randn
from operator_table import OPERATORS, C, N

from helion_sinkhorn import hc_expand, nn

GIVEN = {name: (row.function, tuple(row.arguments().values())) for name, row in OPERATORS.items()}
STREAMS = randn(3, N, C)
CASES = {
    **{name: given for name, given in GIVEN.items() if not OPERATORS[name].kernels},
    "nn.Sinkhorn": (nn.Sinkhorn(), (randn(3, 4, 4),)),
    "nn.SinkhornLaneMixer": (nn.SinkhornLaneMixer(4), (randn(3, 4, 4),)),
    "nn.HyperConnection": (nn.HyperConnection(C, N), (STREAMS,)),
    "nn.HyperHead": (nn.HyperHead(C, N), (STREAMS,)),
    "nn.HyperBoundary": (
        nn.HyperBoundary(C, N),
        [OPERATORS["hc_post"].arguments()[k] for k in ("f", "x", "post", "comb")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case):
    function, given = CASES[case]
    with pytest.raises(NotImplementedError, match=r"torch\.jit\.trace.* use torch\.export\.export"):
        torch.jit.trace(function, tuple(given), check_trace=False)


def test_expanding_is_traced_for_any_size():
    traced = torch.jit.trace(lambda h: hc_expand(h, N), (randn(3, C),), check_trace=False)
    h = randn(70, C)
    assert torch.equal(traced(h), hc_expand(h, N))
