"""hc_split_sinkhorn on a CPU: values and gradients against float64, the contract, drop-ins."""

from __future__ import annotations

import math

import pytest
import torch
from autograd_calls import assert_equal, randn, values_and_gradients
from hypothesis import given
from hypothesis import strategies as st

from helion_sinkhorn import Reduce, hc_split_sinkhorn, reference

VALUE, GRADIENT = 1e-6, 2e-6
"""Limits in float32, of the largest entry: twice the largest error of a value, 1.4 times that of a sum."""


def results(mixes, scale, base, *upstream, f=hc_split_sinkhorn, **options) -> list[torch.Tensor]:
    """pre, post, comb and the gradients of mixes, scale and base."""
    return values_and_gradients(f, (mixes, scale, base), upstream, **options)


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


FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
OUT = [(dtype, torch.bfloat16, out) for dtype in FLOATS for out in FLOATS]


@pytest.mark.parametrize(
    ("of_mixes", "of_parameters", "out_dtype"),
    [*((x, p, None) for x in FLOATS for p in FLOATS), *OUT],
    ids=str,
)
def test_dtypes(of_mixes, of_parameters, out_dtype):
    """Arguments are widened and computed with; results and gradients are rounded once."""
    wide = torch.float64 if of_mixes == torch.float64 else torch.float32
    mixes, scale, base, *upstream = inputs(40, dtype=of_mixes)
    scale, base, upstream = scale.to(of_parameters), base.to(of_parameters), [g.bfloat16() for g in upstream]
    rounded = results(mixes, scale, base, *upstream, out_dtype=out_dtype)
    plain = results(mixes.to(wide), scale.to(wide), base.to(wide), *upstream)
    dtypes = [out_dtype or wide] * 3 + [of_mixes] + [of_parameters] * 2
    assert_equal(rounded, [t.to(dtype) for t, dtype in zip(plain, dtypes, strict=True)])


@given(
    st.lists(st.integers(0, 4), max_size=3), st.sampled_from((0.0, 0.1, 1.0, 5.0)), st.integers(0, 99),
    st.fixed_dictionaries({
        "hc_mult": st.integers(1, 16), "sinkhorn_iters": st.integers(1, 34) | st.just(100),
        "eps": st.sampled_from((0.0, 1e-12, 1e-6, 1e-3, 0.1)),
        "post_mult": st.sampled_from((0.0, 1.0, 2.0, -1.5)),
        "pre_eps": st.sampled_from((None, 0.0, 1e-2)), "post_eps": st.sampled_from((0.0, 1e-3, -0.5)),
        "comb_order": st.sampled_from(("io", "oi")),
    }),
)  # fmt: skip
def test_any_call_against_float64(lead, spread, seed, options):
    """More iterations than the kernels take too."""
    tensors = inputs(*lead, n=options["hc_mult"], seed=seed, spread=spread)
    truth = results(*(t.double() for t in tensors), f=reference.hc_split_sinkhorn, **options)
    for k, (y, t) in enumerate(zip(results(*tensors, **options), truth, strict=True)):
        assert y.shape == t.shape
        assert y.isfinite().all()
        limit = (VALUE if k < 3 else GRADIENT) * (t.abs().max() if t.numel() else 0)
        assert ((y.double() - t).abs() <= limit).all()


MIX, SCALE, BASE = torch.zeros(2, 24), torch.ones(3), torch.zeros(24)
OK = MIX, SCALE, BASE
COUNT = "pass an int from 1 to"
STEPS = "pass an int from 0 to"
NUMBER = "pass a finite float"
REFUSED = {
    "hc_mult is a bool": (OK, {"hc_mult": True}, TypeError, f"hc_mult is True; {COUNT} 16"),
    "hc_mult is 17": (OK, {"hc_mult": 17}, ValueError, f"hc_mult is 17; {COUNT} 16"),
    "fewer than none": (OK, {"sinkhorn_iters": -1}, ValueError, f"sinkhorn_iters is -1; {STEPS}"),
    "another form": (OK, {"form": "exp"}, ValueError, "form is 'exp'; use one of 'deepseek', 'log'"),
    "the log form on a CPU": (OK, {"form": "log", "implementation": "helion"}, NotImplementedError,
        "mixes is on cpu; use implementation='auto'"),
    "mixes of a number": ((torch.tensor(0.0), SCALE, BASE), {}, ValueError,
        r"mixes has shape \(\); for hc_mult=4"),
    "columns of another n": (OK, {"hc_mult": 3}, ValueError,
                             r"mixes has shape \(2, 24\); for hc_mult=3 pass \(..., 15\): n pre, n post and"),
    "scale of four": ((MIX, torch.ones(4), BASE), {}, ValueError,
                      r"scale has shape \(4,\); for hc_mult=4 pass \(3,\)"),
    "base of two dimensions": ((MIX, SCALE, MIX), {}, ValueError,
                               r"base has shape \(2, 24\); for hc_mult=4 pass \(24,\)"),
    # other numbers are refused by what `sinkhorn` refuses them by
    "eps is negative": (OK, {"eps": -1e-6}, ValueError, "eps is -1e-06; pass 0 or a float from 1e-12 to 1"),
    "post_mult is None": (OK, {"post_mult": None}, TypeError, f"post_mult is None; {NUMBER}"),
    "post_eps is infinite": (OK, {"post_eps": -math.inf}, ValueError, f"post_eps is -inf; {NUMBER}"),
    "pre_eps is nan": (OK, {"pre_eps": math.nan}, ValueError, f"pre_eps is nan; {NUMBER}"),
    "another order": (OK, {"comb_order": "IO"}, ValueError, "comb_order is 'IO'; use one of 'io', 'oi'"),
    "out_dtype is int": (OK, {"out_dtype": torch.int32}, TypeError,
                         "out_dtype is torch.int32; use one of torch.float32, .*, or None"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "options", "kind", "said"), REFUSED.values(), ids=REFUSED)
def test_refused_with_what_to_do(arguments, options, kind, said):
    with pytest.raises(kind, match=said):
        hc_split_sinkhorn(*arguments, **options)


@pytest.mark.parametrize("options", [{"form": "log"}, {"sinkhorn_iters": 0}], ids=str)
def test_a_form_without_kernels(options):
    mixes, scale, base, *_ = inputs(2, 5, dtype=torch.bfloat16)
    plain = hc_split_sinkhorn(mixes, scale, base, **options)
    assert_equal(plain, hc_split_sinkhorn(mixes.float(), scale, base, **options))
    with torch.autocast("cpu", torch.bfloat16):
        assert_equal(hc_split_sinkhorn(mixes, scale, base, **options), plain)
    narrow = hc_split_sinkhorn(mixes, scale, base, **options, out_dtype=torch.float16)
    assert_equal(narrow, [t.half() for t in plain])
    compiled = torch.compile(hc_split_sinkhorn, fullgraph=True, backend="eager")
    assert_equal(compiled(mixes, scale, base, **options), plain)
    mapped = torch.func.vmap(lambda m: hc_split_sinkhorn(m, scale, base, **options))(mixes)
    torch.testing.assert_close(mapped, plain)
    with pytest.raises(ValueError, match=r"reduce is given with form=.*; partial sums need"):
        hc_split_sinkhorn(mixes.float(), scale, base, reduce=Reduce(torch.ones(2, 5), 64), **options)


def test_the_positional_call_of_deepseek_sglang_and_flaggems():
    """(mixes, hc_scale, hc_base, hc_mult, sinkhorn_iters, eps) -> (pre, post, comb)."""
    mixes, scale, base, *_ = inputs(2, 3)
    pre, post, comb = hc_split_sinkhorn(mixes, scale, base, 4, 20, 1e-6)
    assert_equal(hc_split_sinkhorn(mixes, scale, base), (pre, post, comb))
    # no transpose passes: columns are normalised last
    assert (comb - comb.mT).abs().amax((-2, -1)).min() > 0.05
    options = {"pre_eps": 0.25, "post_eps": -0.5, "post_mult": -1, "comb_order": "oi"}
    coefficients = hc_split_sinkhorn(mixes, scale, base, **options)
    torch.testing.assert_close(coefficients, (pre - 1e-6 + 0.25, -post / 2 - 0.5, comb.mT))
