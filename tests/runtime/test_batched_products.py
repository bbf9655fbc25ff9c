"""Products of many small matrices on a CPU: beside float64, and the same bits in any batch."""

from __future__ import annotations

import itertools

import pytest
import torch
from autograd_calls import randn

from helion_sinkhorn.runtime.batched_products import BOUNDARY, LONGEST, fewest, products

CPU = torch.device("cpu")
SIZES = [
    (n, k, m)
    for n, c in itertools.product((1, 3, 4, 5, 15, 16), (1, 3, 16, 257, LONGEST + 515))
    for n, k, m in ((n, n, c), (n, c, n), (1, n, c))
]


@pytest.fixture
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("dtype", "threads", "sizes"),
    # two threads that wait for one another take twenty times as long
    [(torch.float32, 1, SIZES), (torch.float64, 2, SIZES[::7])],
    indirect=["threads"],
    ids=["float32", "float64, two threads"],
)
@pytest.mark.parametrize("turn", [(False, False), (True, False), (False, True)], ids=str)
def test_an_element_has_the_same_bits_in_any_batch(turn, dtype, threads, sizes):
    for n, k, m in sizes:
        a, b = (
            randn(11, *(size[::-1] if turned else size), seed=seed).to(dtype)
            for seed, (size, turned) in enumerate(zip(((n, k), (k, m)), turn, strict=True))
        )
        least = fewest(n * k + k * m, CPU)
        whole = products(a, b, least, *turn)
        exact = (a.double().mT if turn[0] else a.double()) @ (b.double().mT if turn[1] else b.double())
        torch.testing.assert_close(whole.double(), exact, atol=1e-4, rtol=0)
        for at in (slice(0, 1), slice(1, 2), slice(2, 4), slice(3, 11)):
            for given in ((a[at], b[at]), (a[at].clone(), b[at].clone())):
                assert torch.equal(products(*given, least, *turn), whole[at]), (n, k, m, at)


def test_nothing_is_copied_of_elements_that_begin_at_boundaries():
    a, b = randn(8, 4, 4), randn(8, 4, 64)
    with torch.profiler.profile() as made:
        products(a, b, 2)
    assert "aten::copy_" not in {event.name for event in made.events()}
    assert a.data_ptr() % BOUNDARY == b.data_ptr() % BOUNDARY == 0


def test_large_elements_are_multiplied_one_by_one():
    assert fewest(1 << 20, CPU) == 1
    assert fewest(1 << 10, CPU) >= torch.get_num_threads()
    assert fewest(1 << 10, torch.device("cuda")) == 1 << 8
