"""The contract of sinkhorn(...): shapes, dtypes, layouts, masks, errors, and what a graph keeps."""

from __future__ import annotations

import math
import re

import pytest
import torch
from autograd_calls import randn, value_and_gradient
from torch._subclasses import FakeTensorMode

from helion_sinkhorn import nn, plan, reference, sinkhorn
from helion_sinkhorn.configs import settings, store
from helion_sinkhorn.ops.sinkhorn import api

FORMS = ("deepseek", "log")
FIRSTS = ("rows", "cols")
NARROW = (torch.bfloat16, torch.float16)


def both(logits, upstream, *args, **options):
    """P and the gradient of (P * upstream).sum()."""
    return value_and_gradient(lambda x: sinkhorn(x, *args, **options), logits, upstream)


def truth(logits, upstream, *args, **options):
    """The same from the reference in float64."""
    wide = logits.double(), upstream.double()
    return value_and_gradient(lambda x: reference.sinkhorn(x, *args, **options), *wide)


def assert_accurate(actual, expected, n_iters=20, computed=torch.float32):
    """Within the roundings of the longest path, and the one to the result's dtype.

    Each of 2 T half-steps sums k products and takes a reciprocal; the adjoint walks them again.
    """
    k = max(actual.shape[-2:])
    largest = expected.abs().max().item() if expected.numel() else 0.0
    path = 4 * n_iters * (k + 2) * torch.finfo(computed).eps / 2
    assert (actual.double() - expected).abs().max() <= path * max(largest, 1) + (
        torch.finfo(actual.dtype).eps / 2 * largest if actual.dtype in NARROW else 0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("out_dtype", [None, torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("form", FORMS)
def test_arithmetic_is_wide_whatever_the_dtypes(dtype, out_dtype, form):
    result = out_dtype or dtype
    computed = torch.float64 if dtype == torch.float64 else torch.float32
    x, dp = randn(5, 4, 4, dtype=dtype), randn(5, 4, 4, seed=1, dtype=result)
    p, dx = both(x, dp, form=form, out_dtype=out_dtype)
    assert (p.dtype, dx.dtype) == (result, dtype)
    expected, expected_dx = truth(x, dp, form=form)
    # the narrower of what is computed in and what is returned
    assert_accurate(p, expected, computed=max(computed, result, key=lambda d: torch.finfo(d).eps))
    assert_accurate(dx, expected_dx, computed=computed)
    wide, wide_dx = both(x.to(computed), dp.to(computed), form=form)
    assert torch.equal(p, wide.to(result))
    assert torch.equal(dx, wide_dx.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("form", FORMS)
def test_no_iterations_is_exp(dtype, form):
    x, dp = randn(3, 2, 4, dtype=dtype), randn(3, 2, 4, seed=1, dtype=dtype)
    wide = x if dtype == torch.float64 else x.float()
    p, dx = both(x, dp, 0, form=form)
    assert torch.equal(p, wide.exp().to(dtype))
    assert torch.equal(reference.sinkhorn(x, 0, form=form), x.exp())
    assert torch.equal(dx, (dp.to(wide.dtype) * wide.exp()).to(dtype))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("first", FIRSTS)
def test_masked_entries_are_zero(form, first):
    """Elsewhere they are within the budget, by test_kernels.py."""
    x, dp = randn(4, 4, 4), randn(4, 4, 4, seed=1)
    masked = torch.zeros(4, 4, 4, dtype=torch.bool)
    masked[0, 0, 1] = True
    masked[1] = ~torch.eye(4, dtype=torch.bool)
    masked[2] = torch.ones(4, 4, dtype=torch.bool).triu(1)
    x = x.masked_fill(masked, -math.inf)
    p, dx = both(x, dp, form=form, first=first)
    assert torch.equal(dx[masked], torch.zeros_like(dx[masked]))
    if form == "log":
        assert torch.equal(p[masked], torch.zeros_like(p[masked]))


POISONS = {
    "nan": (slice(1, 2), slice(2, 3), math.nan),
    "inf": (slice(1, 2), slice(2, 3), math.inf),
    "masked row": (slice(1, 2), slice(None), -math.inf),
    "masked column": (slice(None), slice(2, 3), -math.inf),
    "all masked": (slice(None), slice(None), -math.inf),
}


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("first", FIRSTS)
@pytest.mark.parametrize(
    ("n_iters", "place", "shape"), [(1, 6, (4, 4)), (20, 3, (4, 4)), (20, 3, (3, 5))], ids=str
)
def test_what_is_undefined_stays_in_its_own_matrix(poison, form, first, n_iters, place, shape):
    x, dp = randn(7, *shape), randn(7, *shape, seed=1)
    rows, cols, value = POISONS[poison]
    bad = x.clone()
    bad[place, rows, cols] = value
    p, dx = both(x, dp, n_iters, form=form, first=first)
    q, dq = both(bad, dp, n_iters, form=form, first=first)
    others = torch.arange(7) != place
    assert torch.equal(q[others], p[others])
    assert torch.equal(dq[others], dx[others])
    trail = "masked column" if first == "rows" else "masked row"
    if form == "deepseek" and poison == trail:
        # softmax along the lead side leaves zeros there, and eps makes them countable
        expected, _ = truth(bad, dp, n_iters, form=form, first=first)
        assert_accurate(q[place], expected[place], n_iters)
        assert dq[place].isfinite().all()
    else:
        assert q[place].isnan().all()
        assert dq[place].isnan().all()
    bad_dp = dp.clone()
    bad_dp[place, rows, cols] = math.nan
    _, dq = both(x, bad_dp, n_iters, form=form, first=first)
    assert torch.equal(dq[others], dx[others])
    assert dq[place].isnan().any()


def test_zero_and_large_eps_are_what_they_say():
    x, dp = randn(3, 4, 4), randn(3, 4, 4, seed=1)
    without, log = both(x, dp, eps=0), both(x, dp, form="log")
    torch.testing.assert_close(without, log, rtol=0, atol=80 * 6 * 2**-24)
    # a large eps shows that it is the caller's that counts
    p, dx = both(x, dp, 3, eps=0.25)
    for actual, expected in zip((p, dx), truth(x, dp, 3, eps=0.25), strict=True):
        assert_accurate(actual, expected, 3)


LOGITS = torch.zeros(2, 4, 4)

# what was given, what is accepted, what to do; runtime/test_checks.py has what is no int
ERRORS = {
    "one dimension": (ValueError, (LOGITS[0, 0],), {}, ("(4,)", "at least two dimensions", "pass")),
    "no dimension": (ValueError, (LOGITS[0, 0, 0],), {}, ("()", "at least two dimensions", "pass")),
    "no rows": (ValueError, (LOGITS[:, :0],), {}, ("(2, 0, 4)", "at least one row and one column")),
    "no columns": (ValueError, (LOGITS[..., :0],), {}, ("(2, 4, 0)", "at least one row and one column")),
    "helion on a cpu without iterations": (
        NotImplementedError, (LOGITS, 0), {"implementation": "helion"},
        ("logits is on cpu", "CUDA and ROCm GPUs", "use implementation='auto'"),
    ),
    "endless n_iters": (
        ValueError, (LOGITS, 1 << 70), {}, ("n_iters is 1180591", "an int from 0 to 1048576", "pass")
    ),
    **{
        str(options)[:40]: (kind, (LOGITS,), options, words)
        for kind, options, *words in (
            (ValueError, {"eps": math.nan}, "eps is nan", "pass 0 or a float from 1e-12"),
            (ValueError, {"eps": math.inf}, "eps is inf", "1e-12 to 1"),
            (ValueError, {"eps": -1e-6}, "eps is -1e-06", "from 1e-12 to 1"),
            (ValueError, {"eps": 1e20}, "eps is 1e+20", "pass 0 or a float from 1e-12"),
            (ValueError, {"eps": 1e-20}, "eps is 1e-20", "pass 0 or a float from 1e-12"),
            (ValueError, {"eps": 10**400}, "eps is beyond", "pass 0"),
            (ValueError, {"form": "log", "eps": 1e-3}, "eps is 0.001 with form='log', which has no eps",
             "leave it out", "form='deepseek'"),
            (TypeError, {"eps": True}, "eps is True", "a float", "pass"),
            (TypeError, {"eps": "1e-6"}, "eps is '1e-6'", "a float", "pass"),
            (ValueError, {"form": "exp"}, "form is 'exp'", "'deepseek', 'log'", "use one of"),
            (ValueError, {"first": "columns"}, "first is 'columns'", "'rows', 'cols'", "use one of"),
            (ValueError, {"backward": "unrolled"}, "backward is 'unrolled'", "'exact'", "use one of"),
            (ValueError, {"implementation": "triton"}, "implementation is 'triton'",
             "'auto', 'helion', 'pytorch'", "use one of"),
            (TypeError, {"out_dtype": torch.int32}, "torch.int32", "torch.bfloat16", "or None"),
            (TypeError, {"out_dtype": "float32"}, "float32", "torch.bfloat16", "or None"),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize(("kind", "args", "options", "words"), ERRORS.values(), ids=ERRORS)
def test_error_says_what_was_given_what_is_accepted_and_what_to_do(kind, args, options, words):
    for function in (sinkhorn, plan):
        with pytest.raises(kind) as raised:
            function(*args, **options)
        for word in words:
            assert word in str(raised.value)


@pytest.mark.parametrize("eps", [0, 0.0, 1e-6])
def test_the_log_form_takes_the_eps_that_changes_nothing(eps):
    assert torch.equal(sinkhorn(LOGITS, form="log", eps=eps), sinkhorn(LOGITS, form="log"))


@pytest.mark.parametrize(
    ("dynamic", "fullgraph", "options", "sentence"),
    [
        (False, True, {"eps": -0.5}, "eps is -0.5; pass 0 or"),
        (True, False, {"eps": -1}, "eps is -1.0; pass 0 or"),
        (True, False, {"eps": 10**400}, "eps is beyond the range of a float"),
        (False, True, {"n_iters": -2}, "n_iters is -2; pass an int from 0 to 1048576"),
        (True, False, {"n_iters": 1 << 70}, f"n_iters is {1 << 70}; pass an int from 0 to 1048576"),
    ],
    ids=str,
)
def test_a_compiled_call_says_the_same(options, sentence, fullgraph, dynamic):
    """With fullgraph=True as the cause that the compiler names."""
    torch._dynamo.reset()
    compiled = torch.compile(sinkhorn, backend="eager", dynamic=dynamic, fullgraph=fullgraph)
    with pytest.raises(Exception, match="(?s)" + re.escape(sentence)) as raised:
        compiled(LOGITS, **options)
    assert fullgraph or raised.type is ValueError


def on_gpu(*shape, dtype=torch.float32):
    """A tensor without data that says it is on a GPU."""
    with FakeTensorMode():
        return torch.empty(shape, dtype=dtype, device="cuda")


@pytest.mark.parametrize(
    ("shape", "dtype", "words"),
    [
        ((2, 129, 4), torch.float32, ("129 of 4", "several rows of 32 entries and more")),
        ((2, 1, 200), torch.bfloat16, ("1 of 200", "several rows of 32 entries and more")),
        ((2, 4, 4), torch.float64, ("torch.float64", "compute in float32")),
    ],
)
def test_beyond_the_kernels_range(shape, dtype, words):
    logits = on_gpu(*shape, dtype=dtype)
    for function in (sinkhorn, plan):
        with pytest.raises(NotImplementedError) as raised:
            function(logits, implementation="helion")
        for word in (*words, "use implementation='auto'"):
            assert word in str(raised.value)
    assert plan(logits).implementation == "pytorch"


@pytest.mark.parametrize(
    ("sizes", "eps", "form", "n_iters", "serves"),
    [
        ((1, 128), 1.0, "deepseek", 20, "pytorch"),
        ((128, 1), 0.01, "deepseek", 20, "pytorch"),
        ((128, 1), 1e-6, "deepseek", 1000, "helion"),
        ((128, 1), 1e-6, "log", 1 << 20, "helion"),
        ((4, 4), 1.0, "deepseek", 1000, "helion"),
    ],
    ids=str,
)
def test_kernels_take_no_matrices_that_leave_their_range(sizes, eps, form, n_iters, serves):
    logits = on_gpu(2, *sizes)
    assert api.served_by(logits, api.Options(n_iters, eps, form), "auto") == serves
    if serves == "pytorch":
        with pytest.raises(NotImplementedError, match="leave the range of the kernels' float32"):
            sinkhorn(logits, n_iters, eps=eps, implementation="helion")


@pytest.mark.parametrize("form", ["log", "deepseek"])
@pytest.mark.parametrize(
    ("m", "serves"), [(31, "pytorch"), (32, "helion"), (150, "helion"), (8193, "helion")]
)
def test_a_gpu_takes_its_kernels_for_large_matrices_of_any_length(m, form, serves):
    assert api.served_by(on_gpu(2, 160, m), api.Options(form=form), "auto") == serves


@pytest.mark.parametrize(
    ("call", "n"), [(sinkhorn, 6), (plan, 7), (lambda x, **options: nn.Sinkhorn(**options)(x), 8)]
)
def test_the_old_name_of_an_implementation(call, n):
    x = torch.randn(2, n, n)
    with pytest.warns(DeprecationWarning, match="now called 'pytorch'"):
        old = call(x, implementation="reference")
    new = call(x, implementation="pytorch")
    assert torch.equal(old, new) if isinstance(old, torch.Tensor) else old == new


def test_plan_on_a_cpu():
    chosen = plan(LOGITS)
    assert (chosen.implementation, chosen.device) == ("pytorch", "cpu")
    assert "PyTorch" in chosen.forward
    assert "PyTorch" in chosen.backward
    assert str(chosen).splitlines() == [
        "implementation: pytorch on cpu",
        f"forward:  {chosen.forward}",
        f"backward: {chosen.backward}",
    ]
    assert plan(LOGITS, 0).forward == "exp(logits)"


@pytest.fixture
def untuned_h200(monkeypatch, tmp_path, fresh_caches):
    """The device is an H200 and no config was ever tuned."""
    monkeypatch.setattr(settings, "DEVICE", "h200")
    monkeypatch.setattr(store, "folders", lambda: [tmp_path])


@pytest.mark.parametrize(
    ("shape", "n_iters", "backward"),
    [
        ((8192, 4, 4), 20, "sinkhorn_backward"),
        ((8192, 4, 4), 200, "sinkhorn_backward_history"),
        ((512, 64, 64), 20, "sinkhorn_backward_history"),
        ((128, 128), 20, "sinkhorn_backward_history"),
        ((0, 4, 4), 20, "sinkhorn_backward"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_plan_on_a_gpu_names_kernels_and_configs(untuned_h200, shape, n_iters, backward, dtype):
    chosen = plan(on_gpu(*shape, dtype=dtype), n_iters)
    assert (chosen.implementation, chosen.device) == ("helion", "h200 (cuda:0)")
    assert chosen.forward.startswith("sinkhorn_forward (block_sizes=(")
    assert chosen.backward.startswith(f"{backward} (block_sizes=(")
    assert chosen.forward.endswith("from the kernel's default")


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "expanded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_graph_keeps_the_logits_however_they_lie_and_nothing_else(dtype, layout):
    x, kept = randn(4096, 4, 4, dtype=dtype), []
    x = {"contiguous": x, "transposed": x.mT, "expanded": x[:1].expand_as(x)}[layout].requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        sinkhorn(x)
    assert [(t.data_ptr(), t.stride()) for t in kept] == [(x.data_ptr(), x.stride())]


@pytest.mark.parametrize(
    ("good", "bad", "error"),
    [
        ({"n_iters": 1}, {"n_iters": True}, TypeError),
        ({"n_iters": 20}, {"n_iters": 20.0}, TypeError),
        ({"eps": 1}, {"eps": True}, TypeError),
        ({"form": "log"}, {"form": ["log"]}, ValueError),
        ({"form": "log"}, {"form": "Log"}, ValueError),
    ],
)
def test_accepted_arguments_do_not_let_equal_ones_pass(good, bad, error):
    x = torch.randn(3, 4, 4)
    sinkhorn(x, **good)
    sinkhorn(x, **good)
    with pytest.raises(error):
        sinkhorn(x, **bad)


def test_accepted_arguments_do_not_let_other_tensors_pass():
    sinkhorn(torch.randn(3, 4, 4))
    for other in (torch.zeros(3, 4, 4, dtype=torch.int32), torch.randn(3, 4, 4).to_sparse()):
        with pytest.raises(TypeError):
            sinkhorn(other)
    with pytest.raises(ValueError, match="at least one row and one column"):
        sinkhorn(torch.randn(3, 4, 0))
    for _ in range(2):
        with pytest.raises(NotImplementedError):
            sinkhorn(torch.randn(3, 4, 4), implementation="helion")


def test_accepted_arguments_are_few(monkeypatch):
    monkeypatch.setattr(api, "MOST_ACCEPTED", 8)
    monkeypatch.setattr(api, "_accepted", {})
    for k in range(1, 40):
        sinkhorn(torch.randn(1, 2, 2), n_iters=k)
    assert 1 <= len(api._accepted) <= 8
    # what was accepted last is not checked again
    monkeypatch.setattr(api, "_check", lambda *given: pytest.fail("checked again"))
    sinkhorn(torch.randn(1, 2, 2), n_iters=39)
