"""dot_compress on a CPU: values, gradients, and what autograd, compilers and functorch see of it."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal, dynamic_frames
from dot_compress_problem import inputs, results, worst_errors
from hypothesis import given
from hypothesis import strategies as st

from helion_sinkhorn import dot_compress
from helion_sinkhorn.lab.dot_compress import budget as testing_dot_compress

NARROW = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", NARROW)
def test_precise_intermediate_leaves_only_the_last_rounding(dtype):
    given = inputs(2, 600, 64, 16, dtype=dtype)
    plain, precise = (results(*given, precise_intermediate=p) for p in (False, True))
    truth = testing_dot_compress.exact(*given, parts=2)
    assert max(worst_errors(precise, *given, parts=2).values()) <= 1
    for name in ("out", "dx", "dy"):
        errors = [(r[name].double() - truth[name].value).square().mean().sqrt() for r in (plain, precise)]
        last = truth[name].last.square().mean().sqrt()
        assert errors[1] < 1.02 * last < errors[0]


def test_precise_intermediate_changes_nothing_of_float32():
    given = inputs(2, 37, 20, 5)
    assert_equal(results(*given).values(), results(*given, precise_intermediate=True).values())


@given(st.integers(-6, 6), st.integers(-6, 6), st.integers(0, 99))
def test_powers_of_two_scale_through(i, j, seed):
    """out is of degree two in x and one in y: scaling by powers of two changes no bit but the exponent."""
    x, y, z, grad = inputs(2, 33, 16, 8, dtype=torch.bfloat16, seed=seed)
    a, b = 2.0**i, 2.0**j
    plain, scaled = results(x, y, z, grad), results(a * x, b * y, a * b * z, grad)
    assert torch.equal(scaled["out"], a * a * b * plain["out"])
    assert torch.equal(scaled["dx"], a * b * plain["dx"])
    assert torch.equal(scaled["dy"], a * a * plain["dy"])
    assert torch.equal(scaled["dz"], a * plain["dz"])


def test_sizes_beyond_the_kernels_are_compiled_once():
    calls = [inputs(2, 12 + k, 6 + k, 130 + 9 * k, False)[:2] for k in range(3)]
    assert dynamic_frames(dot_compress, calls) == 1


def test_no_rows_leave_z():
    x, y, z, _ = inputs(2, 0, 6, 5)
    assert torch.equal(torch.ops.helion_sinkhorn.dot_compress(x, y, z, 1, "pytorch")[1][:, 0], z)


F32 = torch.zeros(2, 3, 4)
REFUSED = {
    "dtypes differ": ((F32, F32.bfloat16()), {}, TypeError, "y has dtype torch.bfloat16, x torch.float32"),
    "a vector": ((F32[0, 0], F32), {}, ValueError, r"x has shape \(4,\); pass \(\.\.\., M, D\)"),
    "no columns": ((F32[..., :0], F32), {}, ValueError, "at least one column"),
    "other rows": ((F32, F32[:, :2]), {}, ValueError, r"y has shape \(2, 2, 4\).*same M"),
    "other batch": ((F32, F32[:1]), {}, ValueError, "leading dimensions"),
    "z transposed": ((F32, F32[..., :2], torch.zeros(2, 2, 4)), {}, ValueError, r"D, K\), \(2, 4, 2\)"),
    "precise": ((F32, F32), {"precise_intermediate": 1}, TypeError, "pass True or False"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "options", "kind", "said"), REFUSED.values(), ids=REFUSED)
def test_refused_with_what_to_do(arguments, options, kind, said):
    with pytest.raises(kind, match=said):
        dot_compress(*arguments, **options)
