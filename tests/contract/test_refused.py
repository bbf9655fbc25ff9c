"""Refused: what is no tensor of floats on the device of the others, implementations, torch.jit.trace."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import randn
from contract import COMPOSED, PARTS, ROWS
from operator_table import GATES, OPERATORS, C, N

from helion_sinkhorn import hc_expand, nn


def nested(x):
    return torch.nested.nested_tensor([x[:1], x], layout=torch.jagged)


ACCEPTED = r"accepted are torch\.float32, torch\.bfloat16.*: convert with"
KINDS = {
    "a list": (lambda x: [1.0], TypeError, r"is a list; pass a torch\.Tensor of shape \("),
    "None": (lambda x: None, TypeError, r"is a NoneType; pass a torch\.Tensor of shape \("),
    "integers": (torch.Tensor.long, TypeError, rf"has dtype torch\.int64; {ACCEPTED} \.float\(\)"),
    "flags": (torch.Tensor.bool, TypeError, rf"has dtype torch\.bool; {ACCEPTED} \.float\(\)"),
    "complex": (torch.Tensor.cfloat, TypeError, rf"has dtype torch\.complex64; {ACCEPTED} \.real or \.abs"),
    "sparse": (torch.Tensor.to_sparse, TypeError, r"has layout torch\.sparse_coo.*\.to_dense\(\)"),
    "nested": (nested, TypeError, r"is a nested tensor.*\.unbind\(\)"),
    "elsewhere": (lambda x: x.to("meta"), ValueError, "is on meta, .* on cpu; move one"),
}
OPTIONAL = "bias", "comb", "norm_weight", "y_norm_weight", "z", "pre_next", "initial_state", *GATES
"""None is a value of these."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", [name for name in (*PARTS, *COMPOSED) if name != "attention, gk" and "reduced" not in name]
)
def test_refused_by_name(name, kind):
    make, error, said = KINDS[kind]
    given = ROWS[name].arguments()
    for place, argument in enumerate(given):
        if kind == "None" and argument in OPTIONAL:
            continue
        # the others are compared with the first one
        if kind == "elsewhere" and place == 0:
            continue
        with pytest.raises(error, match=f"^{argument} {said}"):
            ROWS[name].function(*{**given, argument: make(given[argument])}.values())


@pytest.mark.parametrize(
    "name",
    [
        "sinkhorn", "dot_compress", "attention", "hc_mixes", "hc_split_sinkhorn", "hc_pre", "hc_post",
        "hc_head", "hc_site",
    ],
)  # fmt: skip
def test_implementations(name):
    given = ROWS[name].arguments().values()
    with pytest.raises(ValueError, match="implementation is 'cuda'; use one of 'auto'"):
        ROWS[name].function(*given, implementation="cuda")
    with pytest.raises(NotImplementedError, match=r"CUDA and ROCm GPUs, .* is on cpu; use .*='auto'"):
        ROWS[name].function(*given, implementation="helion")


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
def test_traces_are_refused(case):
    """They could not be right for another size."""
    function, given = CASES[case]
    with pytest.raises(NotImplementedError, match=r"torch\.jit\.trace.* use torch\.export\.export"):
        torch.jit.trace(function, tuple(given), check_trace=False)


def test_expanding_is_traced_for_any_size():
    traced = torch.jit.trace(lambda h: hc_expand(h, N), (randn(3, C),), check_trace=False)
    h = randn(70, C)
    assert torch.equal(traced(h), hc_expand(h, N))
