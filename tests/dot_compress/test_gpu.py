"""dot_compress on a CUDA or ROCm device, against float64 on the CPU."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal, randn

from helion_sinkhorn import dot_compress
from helion_sinkhorn.lab.dot_compress import budget as testing_dot_compress
from helion_sinkhorn.lab.rounding import worst

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
BF16 = torch.bfloat16


def inputs(batch, m, d, k, dtype=BF16, has_z=True):
    shapes = (batch, m, d), (batch, m, k), (batch, d, k), (batch, m, k)
    x, y, z, grad = (randn(*shape, seed=i, dtype=dtype, device=DEVICE) for i, shape in enumerate(shapes))
    return x, y, z if has_z else None, grad


def results(x, y, z, grad, f=dot_compress, **options):
    """[out, dx, dy] and with z dz, from the kernels."""
    given = (x, y) if z is None else (x, y, z)
    leaves = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in given]
    out = f(*leaves, implementation="helion", **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def check(given, parts=1, **options):
    truth = testing_dot_compress.exact(*given, parts)
    found = dict(zip(truth, results(*given, **options), strict=False))
    errors = {name: worst(t, truth[name].value, truth[name].budget) for name, t in found.items()}
    assert max(errors.values()) <= 1, errors


@pytest.mark.parametrize(
    ("shape", "dtype", "has_z"),
    [
        ((3, 3219, 256, 64), BF16, False),
        ((2, 37, 20, 5), BF16, True),
        ((2, 300, 64, 16), torch.float16, True),
        ((2, 100, 64, 16), torch.float32, True),
        ((2, 129, 1000, 64), BF16, False),
        ((2, 70, 300, 128), torch.float32, False),
    ],
    ids=str,
)
def test_sizes_and_types(shape, dtype, has_z):
    check(inputs(*shape, dtype, has_z))
    # one element alone takes the code of several
    check(inputs(1, *shape[1:], dtype, has_z))


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_precise_intermediate(dtype):
    given = inputs(2, 600, 256, 64, dtype)
    check(given, 2, precise_intermediate=True)
    truth = testing_dot_compress.exact(*given, 2)["out"]
    plain, precise = (results(*given, precise_intermediate=p)[0].double().cpu() for p in (False, True))
    errors = [(out - truth.value).square().mean().sqrt() for out in (plain, precise)]
    last = truth.last.square().mean().sqrt()
    assert errors[1] < 1.02 * last < errors[0]


def test_same_bits_again_from_splits_and_at_every_position():
    given = inputs(11, 300, 256, 64)
    whole = results(*given)
    for _ in range(5):
        assert_equal(results(*given), whole)
    for part in (slice(0, 1), slice(3, 8), slice(10, 11), slice(1, 11)):
        assert_equal(results(*[t[part] for t in given]), [t[part] for t in whole])
    copies = [t[:1].expand(40, *t.shape[1:]).contiguous() for t in given]
    for t in results(*copies):
        assert torch.equal(t, t[:1].expand_as(t))


def test_layouts():
    given = inputs(3, 300, 256, 64)
    expected = results(*given)
    assert_equal(results(*[t.mT.contiguous().mT for t in given]), expected)
    assert_equal(results(*[t.repeat_interleave(2, 0)[::2] for t in given]), expected)
    leading = results(*[t.unsqueeze(1) for t in given])
    assert_equal([t.squeeze(1) for t in leading], expected)
    shifted = [
        torch.empty(t.numel() + 1, dtype=t.dtype, device=DEVICE)[1:].view(t.shape).copy_(t) for t in given
    ]
    assert_equal(results(*shifted), expected)


def test_compiled():
    given = inputs(3, 300, 256, 64)
    assert_equal(results(*given, f=torch.compile(dot_compress, fullgraph=True)), results(*given))


def test_more_than_two_to_the_31_elements():
    free, _ = torch.cuda.mem_get_info()
    if free < 16 << 30:
        pytest.skip(f"needs 16 GiB of free memory, there are {free >> 30}")
    x = torch.zeros(2600, 3219, 256, dtype=BF16, device=DEVICE)
    y = torch.zeros(2600, 3219, 16, dtype=BF16, device=DEVICE)
    some = inputs(2, 3219, 256, 16, has_z=False)
    x[-2:], y[-2:] = some[0], some[1]
    out = dot_compress(x, y, implementation="helion")
    assert torch.equal(out[-2:], dot_compress(some[0], some[1], implementation="helion"))
    assert not out[:-2].any()
