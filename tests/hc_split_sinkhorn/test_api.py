"""hc_split_sinkhorn on a CPU: values and gradients against float64, the contract, drop-ins."""

from __future__ import annotations

import math

import pytest
import torch
from autograd_calls import assert_equal, randn, values_and_gradients
from hypothesis import given
from hypothesis import strategies as st

from helion_sinkhorn import Reduce, hc_split_sinkhorn, reference
from helion_sinkhorn.lab.split.workloads import ROWS

NAMES = ("pre", "post", "comb", "dmixes", "dscale", "dbase")
CI = [row for row in ROWS if "ci" in row.tags]
VALUE, GRADIENT = 1e-6, 2e-6
"""Limits in float32, of the largest entry: twice the largest error of a value, 1.4 times that of a sum."""


def results(mixes, scale, base, *upstream, f=hc_split_sinkhorn, **options) -> dict[str, torch.Tensor]:
    """The three results and the three gradients; an upstream gradient that is None is of an unused result."""
    return dict(zip(NAMES, values_and_gradients(f, (mixes, scale, base), upstream, **options), strict=True))


def exact(*tensors, f=reference.hc_split_sinkhorn, **options) -> dict[str, torch.Tensor]:
    """The same by autograd of the specification in float64."""
    wide = [None if t is None else t.double() for t in tensors]
    return results(*wide, f=f, **options)


def inputs(*lead, n=4, dtype=torch.float32, seed=0, spread=1.0):
    """(mixes, scale, base, dpre, dpost, dcomb), float32 but for the mixes; float64 if these are."""
    columns = n * n + 2 * n
    rest = torch.float64 if dtype == torch.float64 else torch.float32
    return (
        randn(*lead, columns, seed=seed, dtype=dtype, scale=spread),
        torch.tensor([0.7, 1.1, 0.9], dtype=rest),
        *(
            randn(*shape, seed=seed + k, dtype=rest)
            for k, shape in enumerate(((columns,), (*lead, n), (*lead, n), (*lead, n, n)), 1)
        ),
    )


def half_ulp(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The most that one rounding of x to the dtype is off by."""
    return torch.finfo(dtype).eps / 2 * x.abs().clamp(min=torch.finfo(dtype).tiny)


def assert_close(found, truth, value=VALUE, gradient=GRADIENT) -> None:
    """Within the limits of the largest entry, and half an ulp more where the result is narrower."""
    for name, t in truth.items():
        y = found[name]
        assert y.shape == t.shape
        limit = (gradient if name.startswith("d") else value) * (t.abs().max() if t.numel() else 0)
        if y.dtype in (torch.bfloat16, torch.float16):
            limit = limit + half_ulp(t, y.dtype)
        over = ((y.double() - t).abs() > limit) | ~y.isfinite()
        assert not over.any(), f"{name}: {(y.double() - t).abs().max():.3g} beyond {limit}"


@pytest.mark.parametrize("name", ["hc_saturated", "hc_checkpoint", "hc_peaked"])
def test_each_gradient_of_a_gate_is_right_by_itself(name):
    """Neither 1 - sigmoid(a) nor autograd of sigmoid in float64 leaves anything of it at a = 40."""
    (row,) = [row for row in CI if row.name == name]
    mixes, scale, base, dpre, dpost, dcomb = row.make_inputs()
    n = row.n
    found = results(mixes, scale, base, dpre, dpost, dcomb, **row.options)["dmixes"][..., : 2 * n]
    s = scale[:2].repeat_interleave(n)
    # the argument as float32 has it: its own rounding is no fault of the gate
    e = (mixes[..., : 2 * n] * s + base[: 2 * n]).double().abs().neg().exp()
    truth = torch.cat([dpre, row.post_mult * dpost], -1).double() * s.double() * e / (1 + e).square()
    # beyond the range of float32 nothing is asked
    kept = truth.abs() > 1e-36
    assert kept.float().mean() > 0.9
    torch.testing.assert_close(found.double()[kept], truth[kept], rtol=1e-5, atol=0.0)


FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.mark.parametrize("of_parameters", FLOATS, ids=str)
@pytest.mark.parametrize("of_mixes", FLOATS, ids=str)
def test_dtypes_of_mixes_and_parameters(of_mixes, of_parameters):
    mixes, scale, base, *upstream = inputs(40, dtype=of_mixes)
    tensors = mixes, scale.to(of_parameters), base.to(of_parameters), *upstream
    found = results(*tensors)
    wide = torch.float64 if of_mixes == torch.float64 else torch.float32
    assert [t.dtype for t in found.values()] == [wide] * 3 + [of_mixes] + [of_parameters] * 2
    assert_close(found, exact(*tensors))


@pytest.mark.parametrize("out_dtype", FLOATS, ids=str)
@pytest.mark.parametrize("of_mixes", FLOATS, ids=str)
def test_out_dtype_rounds_once(of_mixes, out_dtype):
    mixes, scale, base, *upstream = inputs(40, dtype=of_mixes)
    upstream = [g.to(out_dtype) for g in upstream]
    found = results(mixes, scale, base, *upstream, out_dtype=out_dtype)
    plain = results(mixes, scale, base, *upstream)
    assert [found[name].dtype for name in NAMES[:3]] == [out_dtype] * 3
    assert_equal([found[name] for name in NAMES[:3]], [plain[name].to(out_dtype) for name in NAMES[:3]])
    assert_close(found, exact(mixes, scale, base, *upstream))


def test_constants():
    tensors = inputs(40)
    for eps in (1e-6, 1e-2):
        same = results(*tensors, eps=eps, pre_eps=eps, post_eps=0.0, post_mult=2.0)
        assert_equal(results(*tensors, eps=eps).values(), same.values())
        assert_equal(results(*tensors, eps=eps, pre_eps=None).values(), same.values())
    mixes, scale, base, *_ = tensors
    plain = hc_split_sinkhorn(mixes, scale, base, pre_eps=0)
    pre, post, comb = hc_split_sinkhorn(mixes, scale, base, pre_eps=0.25, post_eps=-0.5, post_mult=-1)
    torch.testing.assert_close(pre, plain[0] + 0.25)
    torch.testing.assert_close(post, -plain[1] / 2 - 0.5)
    assert torch.equal(comb, plain[2])


@given(
    st.lists(st.integers(0, 4), max_size=3), st.sampled_from((0.0, 0.1, 1.0, 5.0)), st.integers(0, 99),
    st.fixed_dictionaries({
        "hc_mult": st.integers(1, 16), "sinkhorn_iters": st.integers(1, 34),
        "eps": st.sampled_from((0.0, 1e-12, 1e-6, 1e-3, 0.1)),
        "post_mult": st.sampled_from((0.0, 1.0, 2.0, -1.5)),
        "pre_eps": st.sampled_from((None, 0.0, 1e-2)), "post_eps": st.sampled_from((0.0, 1e-3)),
        "comb_order": st.sampled_from(("io", "oi")),
    }),
)  # fmt: skip
def test_any_call_against_float64(lead, spread, seed, options):
    tensors = inputs(*lead, n=options["hc_mult"], seed=seed, spread=spread)
    found, truth = results(*tensors, **options), exact(*tensors, **options)
    assert_close(found, truth)


MIX, SCALE, BASE = torch.zeros(2, 24), torch.ones(3), torch.zeros(24)
OK = MIX, SCALE, BASE
COUNT = "pass an int from 1 to"
STEPS = "pass an int from 0 to"
NUMBER = "pass a finite float"
REFUSED = {
    "hc_mult is a bool": (OK, {"hc_mult": True}, TypeError, f"hc_mult is True; {COUNT} 16"),
    "hc_mult is 0": (OK, {"hc_mult": 0}, ValueError, f"hc_mult is 0; {COUNT} 16"),
    "hc_mult is 17": (OK, {"hc_mult": 17}, ValueError, f"hc_mult is 17; {COUNT} 16"),
    "iterations are a float": (OK, {"sinkhorn_iters": 2.0}, TypeError,
        f"sinkhorn_iters is 2.0; {STEPS} 1048576"),
    "fewer than none": (OK, {"sinkhorn_iters": -1}, ValueError, f"sinkhorn_iters is -1; {STEPS}"),
    "another form": (OK, {"form": "exp"}, ValueError, "form is 'exp'; use one of 'deepseek', 'log'"),
    "the log form on a CPU": (OK, {"form": "log", "implementation": "helion"}, NotImplementedError,
        "mixes is on cpu; use implementation='auto'"),
    "too many iterations": (OK, {"sinkhorn_iters": 1 << 21}, ValueError,
        f"sinkhorn_iters is 2097152; {STEPS}"),
    "mixes of a number": ((torch.tensor(0.0), SCALE, BASE), {}, ValueError,
        r"mixes has shape \(\); for hc_mult=4"),
    "columns of another n": (OK, {"hc_mult": 3}, ValueError,
                             r"mixes has shape \(2, 24\); for hc_mult=3 pass \(..., 15\): n pre, n post and"),
    "scale of four": ((MIX, torch.ones(4), BASE), {}, ValueError,
                      r"scale has shape \(4,\); for hc_mult=4 pass \(3,\)"),
    "scale of none": ((MIX, torch.tensor(1.0), BASE), {}, ValueError,
        r"scale has shape \(\); .* pass \(3,\)"),
    "base of two dimensions": ((MIX, SCALE, MIX), {}, ValueError,
                               r"base has shape \(2, 24\); for hc_mult=4 pass \(24,\)"),
    # other numbers are refused by what `sinkhorn` refuses them by
    "eps is negative": (OK, {"eps": -1e-6}, ValueError, "eps is -1e-06; pass 0 or a float from 1e-12 to 1"),
    "post_mult is None": (OK, {"post_mult": None}, TypeError, f"post_mult is None; {NUMBER}"),
    "post_mult is infinite": (OK, {"post_mult": math.inf}, ValueError, f"post_mult is inf; {NUMBER}"),
    "pre_eps is nan": (OK, {"pre_eps": math.nan}, ValueError, f"pre_eps is nan; {NUMBER}"),
    "post_eps is infinite": (OK, {"post_eps": -math.inf}, ValueError, f"post_eps is -inf; {NUMBER}"),
    "another order": (OK, {"comb_order": "IO"}, ValueError, "comb_order is 'IO'; use one of 'io', 'oi'"),
    "out_dtype is int": (OK, {"out_dtype": torch.int32}, TypeError,
                         "out_dtype is torch.int32; use one of torch.float32, .*, or None"),
    "out_dtype is a string": (OK, {"out_dtype": "float32"}, TypeError, "out_dtype is float32; use one of"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "options", "kind", "said"), REFUSED.values(), ids=REFUSED)
def test_refused_with_what_to_do(arguments, options, kind, said):
    with pytest.raises(kind, match=said):
        hc_split_sinkhorn(*arguments, **options)


def test_more_iterations_than_the_kernels_take():
    tensors = inputs(5)
    assert_close(results(*tensors, sinkhorn_iters=100), exact(*tensors, sinkhorn_iters=100))


def test_partial_sums_are_for_the_form_that_has_kernels():
    partials, squares = torch.zeros(2, 3, 24), torch.ones(2, 3)
    for options in ({"form": "log"}, {"sinkhorn_iters": 0}):
        with pytest.raises(ValueError, match=r"reduce is given with form=.*; partial sums need"):
            hc_split_sinkhorn(partials, SCALE, BASE, reduce=Reduce(squares, 64), **options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_form_without_kernels_has_the_dtypes_of_the_others(dtype):
    mixes, scale, base, *_ = inputs(5, dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        found = hc_split_sinkhorn(mixes, scale, base, form="log")
    assert {t.dtype for t in found} == {wide}
    assert_equal(list(found), list(hc_split_sinkhorn(mixes, scale, base, form="log")))
    narrow = hc_split_sinkhorn(mixes, scale, base, form="log", out_dtype=torch.float16)
    assert_equal(list(narrow), [t.half() for t in found])


def test_a_form_without_kernels_compiles_and_maps():
    mixes, scale, base, *_ = inputs(2, 5)
    for options in ({"form": "log"}, {"sinkhorn_iters": 0}):
        plain = hc_split_sinkhorn(mixes, scale, base, **options)
        compiled = torch.compile(hc_split_sinkhorn, fullgraph=True, backend="eager")
        assert_equal(list(compiled(mixes, scale, base, **options)), list(plain))
        mapped = torch.func.vmap(lambda m, o=options: hc_split_sinkhorn(m, scale, base, **o))(mixes)
        torch.testing.assert_close(mapped, plain)


def test_the_positional_call_of_deepseek_sglang_and_flaggems():
    """(mixes, hc_scale, hc_base, hc_mult, sinkhorn_iters, eps) -> (pre, post, comb)."""
    mixes, scale, base, *_ = inputs(2, 3)
    found = hc_split_sinkhorn(mixes, scale, base, 4, 20, 1e-6)
    assert_equal(hc_split_sinkhorn(mixes, scale, base), found)
    # no transpose passes: columns are normalised last
    assert (found[2] - found[2].mT).abs().amax((-2, -1)).min() > 0.05
    assert torch.equal(hc_split_sinkhorn(mixes, scale, base, comb_order="oi")[2], found[2].mT)
