"""Tensors as kernels read them: which are copied, and which are not touched."""

from __future__ import annotations

import pytest
import torch

from helion_sinkhorn.runtime.views import VECTOR_BYTES, flattened

WHOLE = torch.arange(96.0)


def test_what_is_flat_already_is_returned_itself():
    x = WHOLE.view(4, 3, 8)
    assert flattened(x, 2) is x


@pytest.mark.parametrize(
    ("x", "kept", "copied"),
    [
        (WHOLE.view(2, 2, 3, 8), 2, False),
        (WHOLE.view(12, 8), 2, False),
        (WHOLE.view(4, 3, 8).transpose(1, 2), 2, True),
        (WHOLE[1:].view(5, 19), 1, True),
        (WHOLE[4:].view(4, 23), 1, False),
    ],
    ids=["two axes before", "none before", "not contiguous", "off the grid", "on the grid"],
)
def test_the_rest_is_a_view_or_a_copy_of_the_same_values(x, kept, copied):
    found = flattened(x, kept)
    assert torch.equal(found, x.reshape(-1, *x.shape[x.dim() - kept :]))
    assert found.is_contiguous()
    assert found.data_ptr() % VECTOR_BYTES == 0
    assert (found.data_ptr() != x.data_ptr()) == copied
