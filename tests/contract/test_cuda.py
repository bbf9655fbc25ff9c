"""Every operator in a CUDA graph and on a stream of its own: the bits of a plain call."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal
from contract import ROWS, called, listed, upstream_of
from cuda_graphs import capture

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not row.kernels]),
]


def arguments(name, seed=0):
    return [x.cuda() for x in ROWS[name].arguments(2, 150, seed=seed).values()]


def test_a_graph_replays_results_and_gradients_for_other_values(name):
    function, given, others = ROWS[name].function, arguments(name), arguments(name, seed=1)
    expected = called(function, others)
    leaves = [x.requires_grad_() for x in given]
    upstream = upstream_of(function(*leaves))

    def step():
        results = listed(function(*leaves))
        return [*results, *torch.autograd.grad(results, leaves, upstream)]

    graph, captured = capture(step)
    with torch.no_grad():
        for leaf, other in zip(leaves, others, strict=True):
            leaf.copy_(other)
    graph.replay()
    assert_equal([t.detach() for t in captured], expected)


def test_another_stream(name):
    function, given, stream = ROWS[name].function, arguments(name), torch.cuda.Stream()
    expected = called(function, given)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = called(function, given)
    torch.cuda.current_stream().wait_stream(stream)
    assert_equal(found, expected)
