"""hc_mixes on a CPU: values and gradients against float64, the contract, what it stands in for."""

from __future__ import annotations

import math

import pytest
import torch
from autograd_calls import assert_equal, randn, values_and_gradients

from helion_sinkhorn import hc_mixes, reference
from helion_sinkhorn.lab.mixes.workloads import ROWS
from helion_sinkhorn.lab.operators import kernel_calls
from helion_sinkhorn.lab.rounding import UNIT
from helion_sinkhorn.ops.mhc.mixes import api, launch
from helion_sinkhorn.runtime import launch as door

CI = [row for row in ROWS if "ci" in row.tags]
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def inputs(*lead, n=4, c=24, m=None, dtype=torch.float32, seed=0, spread=1.0):
    """(x (..., n, c), fn (m, n c), dmixes (..., m)), the last two float32, or float64 if x is."""
    rest = torch.float64 if dtype == torch.float64 else torch.float32
    m = n * n + 2 * n if m is None else m
    return (
        randn(*lead, n, c, seed=seed, dtype=dtype, scale=spread),
        randn(m, n * c, seed=seed + 1, dtype=rest, scale=0.02),
        randn(*lead, m, seed=seed + 2, dtype=rest),
    )


def results(x, fn, dmixes, *weight, f=hc_mixes, **options) -> list[torch.Tensor]:
    """mixes, dx, dfn and, of a norm weight that is given, its gradient."""

    def call(x, fn, norm_weight=None):
        return f(x, fn, norm_weight=norm_weight, **options)

    return values_and_gradients(call, (x, fn, *weight), [dmixes])


def exact(*tensors, **options) -> list[torch.Tensor]:
    """The same by autograd of the specification in float64."""
    return results(*(t.double() for t in tensors), f=reference.hc_mixes, **options)


on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@on_each_device
@pytest.mark.parametrize("row", [row for row in CI if row.norm_weight], ids=lambda row: row.name)
def test_a_norm_weight_and_its_gradient(row, device):
    """It multiplies fn in float32; its gradient is a sum of M products with fn's."""
    x, fn, weight, upstream = (t.to(device) for t in row.make_inputs())
    weighted = results(x, fn, upstream, weight, norm_eps=row.norm_eps)
    *folded, product = results(x, fn * weight, upstream, norm_eps=row.norm_eps)
    assert_equal(weighted[:3], [*folded, product * weight])
    exact, size = ((of(product).double() * of(fn)).sum(0) for of in (torch.positive, torch.abs))
    assert ((weighted[3] - exact).abs() <= (row.m + 2) * UNIT * size).all()


def test_what_ends_in_every_column_is_merged():
    x, fn, _ = inputs(3, n=1, c=10, m=3)
    assert hc_mixes(x, fn).shape == (3, 1, 3)
    assert torch.equal(hc_mixes(x.flatten(-2), fn), hc_mixes(x, fn)[:, 0])


@on_each_device
@pytest.mark.parametrize("of_fn", FLOATS, ids=str)
@pytest.mark.parametrize("of_x", FLOATS, ids=str)
def test_dtypes_of_streams_and_of_fn(of_x, of_fn, device):
    x, fn, dmixes = (t.to(device) for t in inputs(40, dtype=of_x))
    fn, weight = fn.to(of_fn), (1 + 0.2 * randn(fn.size(1), device=device)).to(of_fn)
    wide = torch.float64 if of_x == torch.float64 else torch.float32
    tensors = results(x, fn, dmixes, weight)
    assert [t.dtype for t in tensors] == [wide, of_x, of_fn, of_fn]
    # parameters are widened, computed with and their gradients rounded once
    same = results(x, fn.to(wide), dmixes, weight.to(wide))
    assert_equal(tensors, [same[0], same[1], same[2].to(of_fn), same[3].to(of_fn)])


def test_tf32_is_float32_on_pytorch():
    tensors = inputs(40, dtype=torch.bfloat16)
    assert_equal(results(*tensors), results(*tensors, precision="tf32"))


def test_the_specification_has_second_derivatives():
    x, fn, _ = inputs(2, n=2, c=2, m=3, dtype=torch.float64)
    for eps_outside in (False, True):
        torch.autograd.gradgradcheck(
            lambda x, fn, o=eps_outside: reference.hc_mixes(x, fn, 0.1, eps_outside=o),
            (x.requires_grad_(), fn.requires_grad_()),
        )


# --- the edges of the norm -------------------------------------------------------------------------------


@pytest.mark.parametrize("norm_eps", [1e-6, 1e-20, 2.0**-126])
@pytest.mark.parametrize("eps_outside", [False, True])
def test_a_token_of_zeros(norm_eps, eps_outside):
    """mixes is linear there: dx is dmixes fn, divided by the norm eps or its root."""
    x, fn, dmixes = inputs(3)
    x[1] = 0
    if eps_outside:
        # dx of 1e38 would be beyond float32
        dmixes[1] *= 1e-3 if norm_eps < 1e-30 else 1.0
    tensors = results(x, fn, dmixes, norm_eps=norm_eps, eps_outside=eps_outside)
    assert not tensors[0][1].any()
    r = 1 / (norm_eps if eps_outside else math.sqrt(norm_eps))
    expected = (dmixes[1].double() @ fn.double() * r).view(4, 24)
    limit = 24 * 4 * UNIT * r * (dmixes[1].abs() @ fn.abs()).view(4, 24).double()
    assert ((tensors[1][1] - expected).abs() <= limit).all()
    assert all(t.isfinite().all() for t in tensors)


@pytest.mark.parametrize("eps_outside", [False, True])
def test_squares_that_underflow(eps_outside):
    """Values of 1e-30: their squares are 0 in float32, and norm_eps is all of the norm."""
    x, fn, dmixes = inputs(3, spread=1e-30)
    tensors = results(x, fn, dmixes, norm_eps=1e-20, eps_outside=eps_outside)
    truth = exact(x, fn, dmixes, norm_eps=1e-20, eps_outside=eps_outside)
    for a, b in zip(tensors, truth, strict=True):
        assert (a - b).abs().max() <= 2e-6 * b.abs().max()


def test_squares_that_overflow():
    """r is 0, and so are mixes and gradients, where the mean square is beyond float32."""
    x, fn, dmixes = inputs(3)
    x[1] *= 1e20
    for eps_outside in (False, True):
        tensors = results(x, fn, dmixes, eps_outside=eps_outside)
        assert all(t.isfinite().all() for t in tensors)
        assert not tensors[0][1].any()
        assert not tensors[1][1].any()


X, FN = torch.zeros(2, 4, 5), torch.zeros(24, 20)
OK = X, FN
EPS = r"pass a finite float of at least 1\.2e-38, float32's smallest normal number"
REFUSED = {
    "x of other columns": ((torch.zeros(2, 4, 6), FN), {}, ValueError,
                           r"fn has shape \(24, 20\); for x of shape \(2, 4, 6\) pass \(M, 24\) if that is "
                           r"\(..., n, C\), \(M, 6\) if it is \(..., n C\)"),
    "x of one dimension": ((torch.zeros(19), FN), {}, ValueError,
                           r"for x of shape \(19,\) pass \(M, 19\) if it is"),
    "x without dimensions": ((torch.zeros(()), FN), {}, ValueError, r"for x of shape \(\) pass none: x has"),
    "streams transposed away": ((torch.zeros(4, 2, 5), FN), {}, ValueError,
                                r"for x of shape \(4, 2, 5\) pass \(M, 10\)"),
    "fn of one row as a vector": ((X, FN[0]), {}, ValueError, r"fn has shape \(20,\); pass \(M, n C\)"),
    "fn without rows": ((X, FN[:0]), {}, ValueError, r"fn has shape \(0, 20\).*1 to 288 rows"),
    "fn of too many rows": ((X, torch.zeros(289, 20)), {}, ValueError, r"fn has shape \(289, 20\)"),
    "norm_weight of other columns": (OK, {"norm_weight": torch.ones(5)}, ValueError,
                                     r"norm_weight has shape \(5,\); for fn \(24, 20\) pass \(20,\)"),
    "norm_eps is a flag": (OK, {"norm_eps": True}, TypeError, f"norm_eps is True; {EPS}"),
    "norm_eps is 0": (OK, {"norm_eps": 0.0}, ValueError, f"norm_eps is 0.0; {EPS}: with a smaller one a"),
    "norm_eps is subnormal": (OK, {"norm_eps": 1e-38}, ValueError, f"norm_eps is 1e-38; {EPS}"),
    "norm_eps is nan": (OK, {"norm_eps": math.nan}, ValueError, f"norm_eps is nan; {EPS}"),
    "another precision": (OK, {"precision": "bfloat16"}, ValueError,
                          "precision is 'bfloat16'; use one of 'float32', 'tf32'"),
    "prenorm is a word": (OK, {"prenorm": "both"}, TypeError, "prenorm is 'both'; pass True or False"),
    "eps_outside is a number": (OK, {"eps_outside": 1}, TypeError, "eps_outside is 1; pass True or False"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "options", "kind", "said"), REFUSED.values(), ids=REFUSED)
def test_refused_with_what_to_do(arguments, options, kind, said):
    with pytest.raises(kind, match=said):
        hc_mixes(*arguments, **options)


def test_one_entry_a_token_is_beyond_the_kernels():
    """On a GPU mixes were 8 times too large there; contract/test_unwritten.py runs such calls on one."""
    assert api.beyond_kernels(torch.zeros(3, 2)) is None
    assert "n C is 1" in api.beyond_kernels(torch.zeros(3, 1))()


@pytest.mark.parametrize("name", ["mixes_one_row", "mixes_odd"])
def test_the_calls_of_a_workload_are_those_that_are_used(name, monkeypatch):
    served = []

    def recorded(kernel, call, *arguments, **options):
        served.append((kernel.name, call))
        door.launch(kernel, call, *arguments, **options)

    monkeypatch.setattr(launch, "launch", recorded)
    (w,) = [row for row in CI if row.name == name]
    x, fn, _, dmixes = w.make_inputs()
    mixes, norms = launch.forward(x, fn, w.norm_eps, w.eps_outside, w.precision)
    launch.backward(dmixes, x, fn, mixes, norms, w.precision)
    assert served == list(kernel_calls(w))
