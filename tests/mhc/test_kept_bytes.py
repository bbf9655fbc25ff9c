"""What a site keeps for its backward, as docs/mhc.md counts it."""

from __future__ import annotations

import torch
from autograd_calls import randn

from helion_sinkhorn import hc_post, nn


def test_bytes_kept_for_a_token_are_those_of_the_table():
    n, c, tokens = 4, 64, 512
    site = nn.HyperConnection(c, n)
    x, f = (randn(tokens, *shape, dtype=torch.bfloat16).requires_grad_() for shape in ((n, c), (c,)))
    kept = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        post, comb, _ = site(x)
        hc_post(f, x, post, comb)
    for parameter in site.parameters():
        kept.pop(parameter.untyped_storage().data_ptr())
    assert sum(kept.values()) / tokens == 2 * n * c + 2 * c + 96 + 8 + 96
