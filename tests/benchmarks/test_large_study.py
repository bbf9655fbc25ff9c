"""What the study of large matrices times is a forward and its own backward."""

from __future__ import annotations

import pytest
import torch

from benchmarks.studies import large


@pytest.mark.parametrize("first", ["rows", "cols"])
def test_the_backward_takes_what_the_forward_kept(first):
    x, dy = torch.randn(2, 1, 150, 140)
    forward, backward, kept = large.kernel_parts(x, dy, large.Case(1, 150, 140, 3, first=first), "pytorch")
    p, _, _, *vectors = forward()
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(large.sinkhorn(leaf, 3, form="log", first=first), leaf, dy)
    torch.testing.assert_close(p, large.sinkhorn(x, 3, form="log", first=first))
    torch.testing.assert_close(backward()[0], expected)
    assert kept == sum(v.nbytes for v in vectors)
