"""Tensors as kernels read them: which are copied, and which are not touched."""

from __future__ import annotations

import pytest
import torch

from helion_sinkhorn.runtime.views import VECTOR_BYTES, flattened, matrices, placed

WHOLE = torch.arange(96.0)


@pytest.mark.parametrize(
    ("batch", "apart", "distance"), [(1 << 20, 64, 1024), (1 << 22, 64, 16), (1 << 28, 2, 32)]
)
def test_matrices_beyond_32_bit_offsets_are_copied_where_their_number_does_not_say_so(batch, apart, distance):
    """2^22 matrices, 1024 entries apart, are 2^26 entries, and Helion gives them 32-bit indices."""
    every_other = torch.empty(batch, apart, 4, 4, dtype=torch.bfloat16, device="meta")[:, 0]
    flat = matrices(every_other)
    assert flat.shape == (batch, 4, 4)
    assert flat.stride() == (distance, 4, 1)


def test_new_tensors_of_any_size_and_flat_ones_are_returned_themselves():
    x = WHOLE.view(4, 3, 8)
    assert flattened(x, 2) is x
    for new in map(torch.zeros, [(1, 24), (3, 1, 8), (1,), ()]):
        assert placed(new) is new


def test_an_axis_of_one_has_the_strides_of_a_new_tensor():
    """Wherever it stands: (tokens, 1, 8) of (1, tokens, 8) had the stride of all tokens in the middle."""
    x = torch.zeros(1, 5, 8).transpose(0, 1)
    assert (x.is_contiguous(), x.stride()) == (True, (8, 40, 1))
    restrided = placed(x)
    assert restrided.stride() == (8, 8, 1)
    assert restrided.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("steps", [3, 5])
def test_one_of_a_batch_has_the_strides_of_a_batch_of_one(steps):
    """Strides are constants of the code: the last step of any sequence has the same, within 32 bits."""
    sequence = torch.zeros(1, steps, 4, 8)
    flat = flattened(sequence[:, -1], 2)
    assert flat.stride() == (32, 8, 1)
    assert flat.data_ptr() == sequence[0, -1].data_ptr()


@pytest.mark.parametrize(
    ("x", "kept", "copied"),
    [
        pytest.param(WHOLE.view(2, 2, 3, 8), 2, False, id="two axes before"),
        pytest.param(WHOLE.view(12, 8), 2, False, id="none before"),
        pytest.param(WHOLE.view(4, 3, 8).transpose(1, 2), 2, True, id="not contiguous"),
        pytest.param(WHOLE[1:].view(5, 19), 1, True, id="off the grid"),
        pytest.param(WHOLE[4:].view(4, 23), 1, False, id="on the grid"),
    ],
)
def test_the_rest_is_a_view_or_a_copy_of_the_same_values(x, kept, copied):
    flat = flattened(x, kept)
    assert torch.equal(flat, x.reshape(-1, *x.shape[x.dim() - kept :]))
    assert flat.is_contiguous()
    assert flat.data_ptr() % VECTOR_BYTES == 0
    assert (flat.data_ptr() != x.data_ptr()) == copied
