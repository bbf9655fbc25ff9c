"""Every operator compiled and exported: one graph for any number of tokens, the bits of the eager call."""

from __future__ import annotations

import pytest
import torch
from contract import KERNELS, PARTS, assert_same, called, listed, operator_of, upstream_of
from torch._dynamo.testing import CompileCounterWithBackend

OTHERS_BY_NIGHT = pytest.mark.nightly("1 to 7 s each; opcheck compiles each of them for any sizes always")
BY_DAY = "sinkhorn", "attention, all gates", "hc_split_sinkhorn, reduced", *KERNELS[:2]
BY_NIGHT = [
    name
    for name in (
        *PARTS, "dot_compress, without z", "hc_mixes, merged", "hc_mixes, prenorm", "hc_post, merged",
        KERNELS[2],
    )
    if name not in BY_DAY
]  # fmt: skip
LEADS = (2, 3), (5, 4), (7, 9), (13, 6)


@pytest.mark.parametrize(
    "name",
    [*BY_DAY, *(pytest.param(name, marks=OTHERS_BY_NIGHT) for name in BY_NIGHT)],
)
def test_compiled_once_for_any_number_of_tokens(name, row):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(row.function, fullgraph=True, backend=counter)
    for lead in LEADS:
        given = row.arguments(*lead, seed=lead[0])
        leaves = [x.clone().requires_grad_() for x in given.values()]
        for leaf, dims in zip(leaves, row.token_dims().values(), strict=True):
            for d in dims:
                torch._dynamo.mark_dynamic(leaf, d)
        results = listed(compiled(*leaves))
        gradients = torch.autograd.grad(results, leaves, upstream_of(results))
        tensors = [*(y.detach() for y in results), *gradients]
        assert_same(name, tensors, called(row.function, [*given.values()]))
    assert counter.frame_count == 1
    with torch.no_grad():
        assert_same(name, listed(compiled(*leaves)), tensors[: len(results)])


@pytest.mark.parametrize(
    "name", ["hc_split_sinkhorn", "hc_mixes", "hc_pre", "hc_post", "hc_post, without comb", "hc_head"]
)
def test_compiled_under_autocast(name, row):
    given = [*row.arguments(2, 3, streams=torch.bfloat16).values()]
    plain = called(row.function, given)
    torch._dynamo.reset()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        compiled = torch.compile(row.function, fullgraph=True, backend="aot_eager")
        assert_same(name, called(compiled, given), plain)


@pytest.mark.parametrize("name", ["hc_split_sinkhorn"])
def test_compiled_with_the_first_result_alone(name, row):
    given = [*row.arguments(2, 3).values()]

    def first(*tensors):
        return listed(row.function(*tensors))[0]

    torch._dynamo.reset()
    compiled = torch.compile(first, fullgraph=True, backend="aot_eager")
    assert_same(name, called(compiled, given), called(first, given))


class Layer(torch.nn.Module):
    """A module of a model: what belongs to no token is a parameter."""

    def __init__(self, row):
        super().__init__()
        self.function, self.names = row.function, []
        for name, x in row.arguments(2, 3).items():
            self.names.append(name)
            if not row.token_dims()[name]:
                self.register_parameter(f"the_{name}", torch.nn.Parameter(x))

    def forward(self, *tokens):
        left = list(tokens)
        given = [
            p if (p := getattr(self, f"the_{name}", None)) is not None else left.pop(0) for name in self.names
        ]
        return self.function(*given)


@pytest.mark.parametrize(
    ("name", "strict"),
    [
        *((name, True) for name in ("sinkhorn", "hc_split_sinkhorn, reduced", *KERNELS[:1])),
        *(
            pytest.param(name, True, marks=OTHERS_BY_NIGHT)
            for name in (*PARTS, KERNELS[1])
            if name not in ("sinkhorn", "hc_split_sinkhorn, reduced")
        ),
        *((name, False) for name in ("hc_split_sinkhorn", "hc_mixes", "hc_pre", "hc_post", *KERNELS[:1])),
    ],
)
def test_exported_program_runs_at_other_token_counts(name, row, strict):
    dims, layer = row.token_dims(), Layer(row)
    of_lead = [torch.export.Dim(f"tokens_{k}", min=2) for k in range(2)]
    shapes = tuple(dict(zip(where, of_lead, strict=False)) for where in dims.values() if where)

    def tokens(*lead):
        return [x for name, x in row.arguments(*lead, seed=lead[0]).items() if dims[name]]

    program = torch.export.export(
        layer, tuple(tokens(2, 3)), dynamic_shapes={"tokens": shapes}, strict=strict
    )
    operator = operator_of(name)
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    assert sum(node.target is operator for graph in graphs for node in graph.nodes) == 1
    for lead in ((2, 3), (7, 2), (3, 8)):
        given = tokens(*lead)
        assert_same(name, listed(program.module()(*given)), listed(layer(*given)))
    if name == "sinkhorn":
        assert_same(name, listed(program.run_decompositions().module()(*given)), listed(layer(*given)))
