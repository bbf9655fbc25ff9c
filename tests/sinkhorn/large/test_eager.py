"""Matrices beyond 128 in PyTorch: values and gradients of random upstream gradients against float64."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal, randn, value_and_gradient

from helion_sinkhorn import reference, sinkhorn
from helion_sinkhorn.lab.sinkhorn.logits import make_logits
from helion_sinkhorn.ops.sinkhorn import definition
from helion_sinkhorn.ops.sinkhorn.large import eager, products, ranks
from helion_sinkhorn.ops.sinkhorn.large.sides import Matrices
from helion_sinkhorn.ops.sinkhorn.scaling import segment_length

FORMS = ["deepseek", "log"]
SIZES = [(190, 180), (300, 260), (4000, 17), (12, 3000)]
"""The second and the third are computed by products, the others line by line."""


@pytest.fixture(params=[eager.LARGE, 1 << 14], ids=["lines", "products"])
def both_ways(request, monkeypatch):
    """Matrices of more than 128 x 128 line by line, and by products."""
    monkeypatch.setattr(eager, "LARGE", request.param)


def assert_as_specified(x, dy, tolerance=1e-12, **options):
    ours, true = (
        value_and_gradient(lambda t, of=of: of(t, **options), x, dy) for of in (sinkhorn, reference.sinkhorn)
    )
    for a, b in zip(ours, true, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * b.abs().max())


def wide(*shape):
    """Logits and upstream gradients in float64."""
    return (randn(*shape, seed=seed, dtype=torch.float64, scale=2) for seed in (0, 1))


@pytest.mark.parametrize(("form", "first"), [("deepseek", "rows"), ("log", "cols")])
@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("n_iters", [1, 2, 25])
def test_float64_is_the_specification(n, m, form, first, n_iters):
    assert segment_length(n, m, torch.float64) > 25
    assert_as_specified(*wide(2, n, m), n_iters=n_iters, form=form, first=first)


@pytest.mark.parametrize("n_iters", [4, 5, 6, 60])
def test_segments_of_float64(n_iters, monkeypatch):
    """Absorbing u and v every second iteration changes nothing."""
    from helion_sinkhorn.ops.sinkhorn.large import log_form

    monkeypatch.setattr(log_form, "segment_length", lambda n, m, dtype: 2)
    assert_as_specified(*wide(1, 180, 190), n_iters=n_iters, form="log")


@pytest.mark.parametrize("eps", [1e-12, 1e-3, 1.0])
def test_other_eps(eps):
    assert_as_specified(*wide(1, 400, 100), 1e-11, n_iters=30, eps=eps)


PEAKED = {
    "8 randn": lambda: 8 * randn(1, 190, 180), "30 randn": lambda: 30 * randn(1, 190, 180),
    "300 randn": lambda: 300 * randn(1, 190, 180), "3000 randn": lambda: 3000 * randn(1, 190, 180),
    "identity": lambda: make_logits("identity_like", 1, 190, 190),
    # whose plan is near a permutation that no row maximum shows
    "c i j": lambda: (40 * torch.linspace(0, 1, 190)[:, None] * torch.linspace(0, 190, 180))[None],
    "a column that loses": lambda: make_logits("column_below", 1, 190, 180),
    "masked": lambda: make_logits("masked", 1, 190, 180),
}  # fmt: skip


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", PEAKED)
@pytest.mark.parametrize("n_iters", [1, 3, 20, 25])
def test_peaked_logits_err_as_float32_autograd_does(kind, form, n_iters):
    """At most six times the error of the definition in float32, or 32 units in the last place."""
    x = PEAKED[kind]()
    own, plain = errors(x, randn(*x.shape, seed=1), n_iters, form)
    for error, of_plain in zip(own, plain, strict=True):
        assert error <= 6 * of_plain + 32 * 2.0**-23, (error, of_plain)


def errors(x, dy, n_iters, form):
    """Errors of P and dX, over their largest entries, by `sinkhorn` and by autograd in float32."""

    def of(function, dtype):
        return value_and_gradient(lambda t: function(t, n_iters, form=form), x.to(dtype), dy.to(dtype))

    true, plain = of(reference.sinkhorn, torch.float64), of(reference.sinkhorn, torch.float32)
    return [
        [float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(some, true, strict=True)]
        for some in (of(sinkhorn, torch.float32), plain)
    ]


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("seed", [0, 2, 3])
def test_absorbed_potentials_of_thousands_leave_no_error(seed):
    """Rounded, they would make columns' sums wrong by 1e-4: P by 3e-6, and dX by 3e-5 of itself."""
    x = 3000 * randn(1, 256, 256, seed=seed)
    (of_p, of_dx), (_, of_plain) = errors(x, randn(1, 256, 256, seed=1), 20, "log")
    assert of_p < 3e-7
    assert of_dx < 1e-6 < of_plain


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize(("form", "most"), [("log", 1e-5), ("deepseek", 3e-5)])
def test_near_a_permutation_the_first_sums_are_looked_at_twice(form, most):
    """One look leaves errors of 2e-5, with eps 1e-4; without a look at the last sums they are 1e-4."""
    x = 14 / 16 * make_logits("identity_like_16", 4, 256, 256)
    (_, of_dx), _ = errors(x, randn(*x.shape, seed=1), 20, form)
    assert of_dx < most


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("n_iters", [1, 5])
def test_what_is_not_finite_stays_in_its_matrix(n_iters):
    x, dy = randn(4, 190, 180), randn(4, 190, 180, seed=1)
    clean = value_and_gradient(lambda t: sinkhorn(t, n_iters, form="log"), x, dy)
    x[0, 3, 4], x[1, 5], x[2, :, 6] = float("nan"), -torch.inf, -torch.inf
    spoiled = value_and_gradient(lambda t: sinkhorn(t, n_iters, form="log"), x, dy)
    for a, b in zip(spoiled, clean, strict=True):
        assert a[:3].isnan().all()
        assert torch.equal(a[3], b[3])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "shape",
    [(70, 16, 200), (40, 9, 200), (40, 140, 20), (40, 140, 9), (9, 129, 129), (3, 300, 260), (40, 1, 200)],
)
@pytest.mark.parametrize("n_iters", [1, 4])
def test_a_matrix_has_the_same_bits_alone(form, shape, n_iters):
    """Also where the batch is the innermost axis of the upstream gradient."""
    x, dy = randn(*shape), randn(*shape, seed=1)
    for upstream in (dy, dy.permute(1, 2, 0).contiguous().permute(2, 0, 1)):
        whole = value_and_gradient(lambda t: sinkhorn(t, n_iters, form=form), x, upstream)
        for at in (0, len(x) // 2, len(x) - 1):
            one = value_and_gradient(lambda t: sinkhorn(t, n_iters, form=form), x[at], dy[at])
            assert_equal(one, [t[at] for t in whole])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(9, 400, 36), (9, 1000, 38), (40, 100, 38)])
@pytest.mark.parametrize("n_iters", [1, 4])
def test_many_threads_change_no_bit(form, shape, n_iters):
    """torch.sum shares the columns of these matrices between eight threads or more, if there are several."""
    x, dy, threads = randn(*shape), randn(*shape, seed=1), torch.get_num_threads()
    try:
        torch.set_num_threads(16)
        whole = value_and_gradient(lambda t: sinkhorn(t, n_iters, form=form), x, dy)
        one = value_and_gradient(lambda t: sinkhorn(t, n_iters, form=form), x[0], dy[0])
    finally:
        torch.set_num_threads(threads)
    assert_equal(one, [t[0] for t in whole])


@pytest.mark.parametrize("shape", [(2, 16, 200), (2, 9, 200), (2, 140, 20), (2, 140, 9), (3, 129, 129)])
@pytest.mark.parametrize("scale", [1, 30, 3000])
@pytest.mark.parametrize("n_iters", [1, 3, 20])
def test_thin_matrices_err_as_float32_autograd_does(shape, scale, n_iters):
    own, plain = errors(scale * randn(*shape), randn(*shape, seed=1), n_iters, "deepseek")
    for error, of_plain in zip(own, plain, strict=True):
        assert error <= 2 * of_plain + 8 * 2.0**-23, (error, of_plain)


@pytest.mark.parametrize("shape", [(2, 16, 200), (1, 190, 180)])
def test_large_upstream_gradients_do_not_overflow(shape):
    x, dy = 30 * randn(*shape), 1e28 * randn(*shape, seed=1)
    _, dx = value_and_gradient(lambda t: sinkhorn(t, 5, eps=1e-12), x, dy)
    _, true = value_and_gradient(lambda t: reference.sinkhorn(t, 5, eps=1e-12), x.double(), dy.double())
    torch.testing.assert_close(dx.double() / 1e28, true / 1e28, rtol=1e-4, atol=1e-5)


def test_products_are_not_rounded_to_narrow_types(monkeypatch):
    """A GPU's TF32 would stop the iteration from converging."""
    seen = []

    class Seen(products.Products):
        def rows(self, *given):
            seen.append(torch.backends.cuda.matmul.fp32_precision)
            return super().rows(*given)

    monkeypatch.setattr(ranks, "Products", Seen)
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        x = randn(1, 300, 260).requires_grad_()
        sinkhorn(x, 4).sum().backward()
        sinkhorn(x, 4, form="log").sum().backward()
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert seen
    assert set(seen) == {"ieee"}


@pytest.mark.parametrize(
    ("n", "m", "n_iters", "form", "calls"),
    [
        (129, 129, 3, "deepseek", 1), (700, 800, 3, "deepseek", 2), (9, 200, 3, "deepseek", 1),
        (700, 800, 1, "log", 2), (129, 129, 4, "deepseek", 0), (129, 129, 2, "log", 0),
        (200, 9, 3, "deepseek", 0),
    ],
)  # fmt: skip
def test_a_few_iterations_are_made_as_written(n, m, n_iters, form, calls, monkeypatch):
    """With a gradient and without one: bits of P do not depend on it.

    Two matrices are worked on together if they fit a cache.
    """
    seen = []
    for name in ("forward", "backward"):
        run = getattr(definition, name)
        monkeypatch.setattr(definition, name, lambda *given, r=run, name=name: seen.append(name) or r(*given))
    x, dy = randn(2, n, m), randn(2, n, m, seed=1)
    p = sinkhorn(x, n_iters, form=form)
    differentiated, _ = value_and_gradient(lambda t: sinkhorn(t, n_iters, form=form), x, dy)
    assert torch.equal(differentiated, p)
    assert seen == ["forward"] * 2 * calls + ["backward"] * calls


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_are_rounded_once(dtype):
    x, dy = (randn(2, 180, 190, seed=seed, dtype=dtype) for seed in (0, 1))
    p, dx = value_and_gradient(lambda t: sinkhorn(t, 4, form="log"), x, dy)
    wide = value_and_gradient(lambda t: sinkhorn(t, 4, form="log"), x.float(), dy.float())
    assert_equal((p, dx), [t.to(dtype) for t in wide])


def test_a_gradient_of_a_call_that_kept_nothing():
    x, dy = randn(1, 300, 260), randn(1, 300, 260, seed=1)
    leaf = x.clone().requires_grad_()
    p, _, _, *kept = torch.ops.helion_sinkhorn.sinkhorn_large(
        leaf, None, None, 4, 0.0, "rows", 1.0, False, "pytorch", torch.float32, [], 0
    )
    assert [len(t) for t in kept] == [0, 0]
    (dx,) = torch.autograd.grad(p, leaf, dy)
    assert_equal((p, dx), value_and_gradient(lambda t: sinkhorn(t, 4, form="log"), x, dy))


@pytest.mark.parametrize("form", FORMS)
def test_no_matrix_is_kept_for_the_gradient(form):
    x, kept = randn(1, 256, 300).requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        sinkhorn(x, 7, form=form)
    assert sorted(t.numel() for t in kept) == [7 * 256, 7 * 300, 256 * 300]
    assert x.data_ptr() in {t.data_ptr() for t in kept}


@pytest.mark.parametrize(
    ("n", "n_iters"), [(40, 4), (40, 24), (600, 4)], ids=["a few iterations", "many at a time", "one by one"]
)
def test_a_small_eps_scales_the_upstream_gradient_of_whole_matrices(n, n_iters):
    """The largest entry of a column is not the largest of its matrix."""
    x, dy = (randn(3, n, n + 3, seed=seed) for seed in (0, 1))
    dy = dy * torch.logspace(-3, 3, n + 3)
    made = eager.forward(Matrices(x, eps=1e-9), n_iters, True, x.dtype)
    dx = eager.backward(dy, None, None, Matrices(x, eps=1e-9), *made[3:])[0]
    _, true = value_and_gradient(lambda t: reference.sinkhorn(t, n_iters, eps=1e-9), x.double(), dy.double())
    assert (dx.double() - true).abs().max() <= 2e-6 * true.abs().max()
