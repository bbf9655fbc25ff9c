"""Tensor operations that the CPU paths make: for few tokens each costs more than its arithmetic."""

from __future__ import annotations

import pytest
from autograd_calls import randn
from torch.utils._python_dispatch import TorchDispatchMode

from helion_sinkhorn.ops.mhc.post import eager as hc_post
from helion_sinkhorn.ops.mhc.pre import eager as hc_pre


class Count(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.calls += 1
        return function(*arguments, **(options or {}))


def calls(run, *arguments) -> int:
    with Count() as count:
        run(*arguments)
    return count.calls


def one_token(n: int) -> dict[str, int]:
    x, gate, comb, f = randn(1, n, 64), randn(1, n), randn(1, n, n), randn(1, 64)
    return {
        "hc_pre": calls(hc_pre.forward, x, gate),
        "hc_pre backward": calls(hc_pre.backward, f, x, gate),
        "hc_post": calls(hc_post.forward, f, x, gate, comb, None, "io"),
        "hc_post backward": calls(hc_post.backward, x, f, x, gate, comb, None, "io"),
    }


@pytest.mark.parametrize("n", [4, 16])
def test_operations_grow_with_the_streams_and_not_with_their_pairs(n):
    """A sum over n streams is n operations; a loop over pairs of streams was 6,000 of them for 16."""
    few, many = one_token(2), one_token(n)
    assert {name: many[name] for name in few if many[name] > few[name] + 14 * (n - 2)} == {}
