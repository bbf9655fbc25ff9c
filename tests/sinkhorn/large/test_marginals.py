"""Marginals, temperature, lengths and potentials: values and gradients against float64, on any size."""

from __future__ import annotations

import math

import pytest
import torch
from autograd_calls import assert_equal, randn, values_and_gradients
from launches import kernels_on_cpu

from helion_sinkhorn import reference, sinkhorn, sinkhorn_potentials

SIZES = [(1, 3), (5, 7), (40, 30), (20, 140), (200, 170)]
SIDES = ["both", "rows", "cols", "none"]


def marginals(n: int, m: int, sides: str, batch: int = 3) -> dict[str, torch.Tensor]:
    """Logarithms of marginals with the sum 1.7; column marginals broadcast over the batch."""
    r = randn(batch, n, seed=2, dtype=torch.float64, scale=1.5).log_softmax(-1) + math.log(1.7)
    c = randn(m, seed=3, dtype=torch.float64, scale=1.5).log_softmax(-1) + math.log(1.7)
    of = {"log_row_marginals": r, "log_col_marginals": c}
    kept = {"both": of, "rows": ("log_row_marginals",), "cols": ("log_col_marginals",), "none": ()}[sides]
    return {name: of[name] for name in kept}


def results(function, x, given, dtype, dy, **options):
    """P and the gradients of the logits and of the marginals."""

    def of(x, *values):
        return function(x, form="log", **dict(zip(given, values, strict=True)), **options)

    return values_and_gradients(of, [t.to(dtype) for t in (x, *given.values())], [dy])


def assert_near(tensors, true, tolerance):
    for a, b in zip(tensors, true, strict=True):
        # of lines that are alone the gradient is zero
        assert (a.double() - b).abs().max() <= tolerance * b.abs().max().clamp(min=0.1)


def assert_as_reference(x, given, dtype, tolerance, meant=None, **options):
    """What sinkhorn makes of these marginals is what the specification makes of them, or of `meant`."""
    dy = randn(*x.shape, seed=1, dtype=torch.float64)
    true = results(reference.sinkhorn, x, meant or given, torch.float64, dy, **options)
    ours = results(sinkhorn, x, given, dtype, dy, **options)
    assert all(t.isfinite().all() for t in ours)
    assert_near(ours, true, tolerance)


@pytest.mark.parametrize(
    ("first", "dtype", "n_iters"),
    [("rows", torch.float64, 4), ("cols", torch.float32, 4), ("cols", torch.float64, 1)],
)
@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_values_and_gradients(n, m, sides, first, dtype, n_iters):
    x, tolerance = randn(3, n, m, dtype=torch.float64), 1e-11 if dtype == torch.float64 else 2e-5
    options = {"n_iters": n_iters, "first": first, "temperature": 0.5}
    assert_as_reference(x, marginals(n, m, sides), dtype, tolerance, **options)


@pytest.mark.parametrize("first", ["rows", "cols"])
@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize(("n", "m"), [(5, 7), (200, 170)])
def test_a_matrix_of_some_lengths_is_a_matrix_of_that_size(n, m, sides, first):
    """Entries outside may be NaN or inf; P and dX are 0 there, and equal a call on the part elsewhere."""
    x, dy = (randn(3, n, m, seed=seed, dtype=torch.float64) for seed in (0, 1))
    rows, columns = torch.tensor([n, n - 3, 1]), torch.tensor([m - 2, m, m - 1])
    given = {"log_row_marginals": randn(3, n, seed=2, dtype=torch.float64)} if sides == "rows" else {}
    if sides == "cols":
        given = {"log_col_marginals": randn(3, m, seed=2, dtype=torch.float64)}
    for k in range(3):
        x[k, rows[k] :], x[k, :, columns[k] :] = torch.nan, torch.inf
    options = {"n_iters": 4, "first": first}
    ours = results(sinkhorn, x, given, torch.float64, dy, row_lengths=rows, col_lengths=columns, **options)
    for k in range(3):
        inside = slice(0, int(rows[k])), slice(0, int(columns[k]))
        own = {name: t[k][inside[name == "log_col_marginals"]] for name, t in given.items()}
        true = results(reference.sinkhorn, x[k][inside], own, torch.float64, dy[k][inside], **options)
        assert_near([t[k][inside] for t in ours[:2]], true[:2], 1e-12)
        for t in ours[:2]:
            assert t[k, rows[k] :].eq(0).all()
            assert t[k, :, columns[k] :].eq(0).all()


def test_lengths_of_one_side():
    x = randn(2, 3, 4, 6)
    lengths = torch.tensor([4, 2, 6])
    p = sinkhorn(x, 30, form="log", col_lengths=lengths)
    for k in range(3):
        assert_equal([p[:, k, :, lengths[k] :]], [torch.zeros_like(p[:, k, :, lengths[k] :])])
        torch.testing.assert_close(p[:, k].sum(-2)[:, : lengths[k]], torch.ones(2, int(lengths[k])))


@pytest.mark.parametrize(("n", "m"), [(6, 5), (200, 170)])
def test_a_line_without_mass_has_none(n, m):
    x, given = randn(3, n, m, dtype=torch.float64), marginals(n, m, "both")
    given["log_row_marginals"][:, 2] = -torch.inf
    # without that row the two sums differ, so only the rows have marginals
    del given["log_col_marginals"]
    x[:, 2] = -torch.inf
    p = sinkhorn(x, 5, form="log", **given)
    assert p[:, 2].eq(0).all()
    without = [k for k in range(n) if k != 2]
    rest = {"log_row_marginals": given["log_row_marginals"][:, without]}
    torch.testing.assert_close(p[:, without], sinkhorn(x[:, without], 5, form="log", **rest))


@pytest.mark.parametrize("scale", [-150.0, 150.0])
def test_any_mass(scale):
    """e^-150 and e^150 are no float32."""
    x, given = randn(3, 30, 20), marginals(30, 20, "both")
    given = {name: t.float() for name, t in given.items()}
    f, g = sinkhorn_potentials(x, 20, **given)
    moved, g_moved = sinkhorn_potentials(x, 20, **{name: t + scale for name, t in given.items()})
    # float32 marginals near 150 are rounded by 1e-5
    torch.testing.assert_close(moved - scale, f, rtol=0, atol=1e-4)
    torch.testing.assert_close(g_moved, g, rtol=0, atol=1e-4)


def test_very_unequal_marginals():
    """A share of e^-60 leaves u and v in range."""
    x = randn(1, 200, 170, dtype=torch.float64)
    r = torch.linspace(0, -60, 200, dtype=torch.float64).log_softmax(-1)
    c = torch.linspace(-60, 0, 170, dtype=torch.float64).log_softmax(-1)
    given = {"log_row_marginals": r, "log_col_marginals": c}
    assert_as_reference(x, given, torch.float32, 1e-4, n_iters=30)


@pytest.mark.parametrize("first", ["rows", "cols"])
@pytest.mark.parametrize(("n", "m"), [(5, 7), (200, 170)])
def test_potentials_and_their_gradients(n, m, first):
    x, given = randn(2, n, m, dtype=torch.float64), marginals(n, m, "both", 2)
    given["log_col_marginals"] = given["log_col_marginals"].expand(2, m)
    upstream = [randn(2, k, seed=7, dtype=torch.float64) for k in (n, m)]

    def potentials(x, r, c):
        given = {"log_row_marginals": r, "log_col_marginals": c}
        return sinkhorn_potentials(x, 3, first=first, temperature=2.0, **given)

    tensors = x, *given.values()
    ours = values_and_gradients(potentials, tensors, upstream)
    true = values_and_gradients(
        lambda x, r, c: reference.potentials(x / 2, 3, r, c, first=first), tensors, upstream
    )
    assert_near(ours, true, 1e-11)
    p = sinkhorn(x, 3, form="log", first=first, temperature=2.0, **given)
    f, g = ours[:2]
    torch.testing.assert_close((x / 2 + f.unsqueeze(-1) + g.unsqueeze(-2)).exp(), p)


def test_without_options_a_call_has_the_bits_it_had():
    x = randn(8, 16, 16)
    assert_equal([sinkhorn(x, 5, form="log", temperature=1.0)], [sinkhorn(x, 5, form="log")])


def test_a_temperature_divides_the_logits():
    x, dy = randn(8, 16, 12, dtype=torch.bfloat16), randn(8, 16, 12, seed=1)
    p, dx = values_and_gradients(lambda t: sinkhorn(t, 5, form="log", temperature=0.1), [x], [dy])
    assert (p.dtype, dx.dtype) == (torch.bfloat16, torch.bfloat16)
    wide = x.float() / 0.1
    torch.testing.assert_close(p, sinkhorn(wide, 5, form="log", out_dtype=torch.bfloat16), rtol=0, atol=0)


def test_no_iterations():
    x = randn(2, 3, 4)
    p = sinkhorn(x, 0, form="log", temperature=2.0, row_lengths=torch.tensor([3, 1]))
    torch.testing.assert_close(p[0], (x[0] / 2).exp())
    assert p[1, 1:].eq(0).all()


def test_optimal_transport_of_pot():
    """sinkhorn_log of POT moves the columns first."""
    ot = pytest.importorskip("ot")
    x, given = randn(30, 20, dtype=torch.float64), marginals(30, 20, "both", 1)
    r, c = given["log_row_marginals"][0], given["log_col_marginals"]
    for n_iters in (1, 7):
        plan = ot.bregman.sinkhorn_log(r.exp(), c.exp(), -x, 0.3, numItermax=n_iters, stopThr=0, warn=False)
        p = sinkhorn(
            x, n_iters, form="log", first="cols", temperature=0.3, log_row_marginals=r, log_col_marginals=c
        )
        torch.testing.assert_close(p, plan, rtol=0, atol=1e-12)


INF = torch.inf


def of(*values):
    """A float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture(params=["pytorch", "helion"])
def implementation(request, monkeypatch):
    """Either of the two, of the matrices that the kernels take."""
    if request.param == "helion":
        kernels_on_cpu(monkeypatch)
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("x", "given"),
    [
        (of([0, 0, 200], [0, 0, 0]), {"log_col_marginals": of(0, 0, -INF)}),
        (of([0, -200], [0, -200], [-200, 0]), {"log_row_marginals": of(0, 0, -INF)}),
    ],
)
def test_a_line_without_mass_may_hold_the_largest_entries(x, given, dtype):
    assert_as_reference(x, given, dtype, 1e-11 if dtype == torch.float64 else 1e-6, n_iters=5)


@pytest.mark.parametrize("first", ["rows", "cols"])
@pytest.mark.parametrize("height", [10.0, 1e6])
def test_lines_without_mass_are_none_of_the_matrix(implementation, first, height):
    """However large their entries are, they cost no precision."""
    x, given = randn(2, 40, 36, dtype=torch.float64), marginals(40, 36, "both", 2)
    r, c = given.values()
    r[:, 5], c[7] = -INF, -INF
    x[:, 5], x[:, :, 7] = height, height
    given = {name: t.log_softmax(-1) for name, t in given.items()}
    assert_as_reference(x, given, torch.float32, 2e-6, n_iters=3, first=first)


@pytest.mark.parametrize("first", ["rows", "cols"])
@pytest.mark.parametrize("name", ["log_row_marginals", "log_col_marginals"])
def test_a_share_below_the_limit_is_none(implementation, name, first):
    """And one above it is kept, in P, in dX and in the gradients of marginals."""
    x, given = randn(2, 40, 36, dtype=torch.float64), marginals(40, 36, "both", 2)
    given = {name: t.log_softmax(-1) for name, t in given.items()}
    given[name][..., 3] = -78.0
    given[name] = given[name].log_softmax(-1)
    assert_as_reference(x, given, torch.float32, 2e-6, n_iters=4, first=first)
    small = given[name].detach().clone()
    small[..., 3], small[..., 5] = -95.0, -110.0
    given[name] = small.log_softmax(-1)
    small[..., 3], small[..., 5] = -INF, -INF
    without = {**given, name: small.log_softmax(-1)}
    assert_as_reference(x, given, torch.float32, 2e-6, without, n_iters=4, first=first)


def test_float64_has_a_limit_of_its_own():
    x, r = randn(3, 4, dtype=torch.float64), of(0.0, -500.0, 0.0)
    p = sinkhorn(x, 5, form="log", first="cols", log_row_marginals=r)
    torch.testing.assert_close(p.sum(-1), r.exp(), rtol=1e-12, atol=0)
    r[1] = -601.0
    assert sinkhorn(x, 5, form="log", log_row_marginals=r)[1].eq(0).all()


BETWEEN = pytest.mark.nightly("half a second each; the smallest and the largest mass run always")


@pytest.mark.parametrize("first", ["rows", "cols"])
@pytest.mark.parametrize(
    "scale", [-95.0, *(pytest.param(s, marks=BETWEEN) for s in (-60.0, 5.0, 80.0)), 87.0]
)
def test_any_mass_of_p_and_of_gradients(implementation, first, scale):
    """P / mass equals P of mass one within float32; gradients of potentials do not depend on the mass."""
    x, given = randn(2, 40, 36, dtype=torch.float64), marginals(40, 36, "both", 2)
    moved = {name: t + scale for name, t in given.items()}
    dy = randn(*x.shape, seed=1, dtype=torch.float64)
    true = results(reference.sinkhorn, x, given, torch.float64, dy, n_iters=4, first=first)
    ours = results(sinkhorn, x, moved, torch.float32, dy, n_iters=4, first=first)
    assert all(t.isfinite().all() for t in ours)
    if scale > -90:
        # marginals near 90 are rounded by 4e-6
        assert_near([t.double() * math.exp(-scale) for t in ours], true, 2e-5)

    def of_potentials(given, dtype):
        leaves = [t.to(dtype).requires_grad_() for t in (x, *given.values())]
        options = dict(zip(given, leaves[1:], strict=True))
        fg = sinkhorn_potentials(leaves[0], 4, first=first, **options)
        return torch.autograd.grad(fg, leaves, [randn(*t.shape, seed=7, dtype=dtype) for t in fg])

    assert_near(of_potentials(moved, torch.float32), of_potentials(given, torch.float64), 2e-5)


def test_p_of_a_mass_beyond_float32(implementation):
    """Its entries are not: e^90 of 40 x 36."""
    x, given = randn(2, 40, 36, dtype=torch.float64), marginals(40, 36, "both", 2)
    moved = {name: (t + 90).float() for name, t in given.items()}
    true = reference.sinkhorn(x, 4, form="log", **given)
    p = sinkhorn(x.float(), 4, form="log", **moved)
    assert_near([p.double() * math.exp(-90)], [true], 2e-5)


@pytest.mark.parametrize("sides", ["both", "rows", "cols"])
@pytest.mark.parametrize("first", ["rows", "cols"])
def test_a_matrix_without_mass_is_zero(implementation, sides, first):
    x, given = randn(2, 40, 36, dtype=torch.float64), marginals(40, 36, sides, 2)
    given = {name: t.expand(2, -1).clone() for name, t in given.items()}
    for t in given.values():
        t[0] = -INF
    dy = randn(*x.shape, seed=1, dtype=torch.float64)
    ours = results(sinkhorn, x, given, torch.float32, dy, n_iters=3, first=first)
    for t in ours:
        assert t[0].eq(0).all()
    alone = {name: t[1] for name, t in given.items()}
    true = results(reference.sinkhorn, x[1], alone, torch.float64, dy[1], n_iters=3, first=first)
    assert_near([t[1] for t in ours], true, 2e-6)


def test_distributed_tensors_are_refused_in_a_sentence(mesh):
    from torch.distributed.tensor import DTensor, Replicate

    x = DTensor.from_local(X, mesh, [Replicate()])
    lengths = torch.tensor([1, 2])
    for logits, rows in ((x, lengths), (x, DTensor.from_local(lengths, mesh, [Replicate()]))):
        with pytest.raises(NotImplementedError, match=r"take no DTensors; call on the .to_local\(\)"):
            sinkhorn(logits, form="log", row_lengths=rows)


X = torch.zeros(2, 3, 4)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"temperature": 0.0}, ValueError, "temperature is 0.0; pass a positive float from 1e-37 to"),
        ({"temperature": 1e-40}, ValueError, "temperature is 1e-40; pass a positive float from 1e-37"),
        ({"temperature": True}, TypeError, "temperature is True; pass a positive float"),
        ({"temperature": torch.tensor([0.5, 0.5])}, TypeError, "temperature is tensor.*; pass a pos"),
        ({"temperature": math.nan}, ValueError, "temperature is nan"),
        ({"temperature": "1"}, TypeError, "temperature is '1'"),
        ({"temperature": 2.0, "form": "deepseek"}, ValueError, "options of form='log'"),
        ({"log_row_marginals": [0.0]}, TypeError, "log_row_marginals is a list"),
        ({"log_row_marginals": torch.zeros(3, dtype=torch.int64)}, TypeError, "int64; pass a floating-point"),
        ({"log_row_marginals": torch.zeros(4)}, ValueError, r"\(4,\); pass one that broadcasts to \(2, 3\)"),
        ({"log_col_marginals": torch.zeros(1, 1, 4)}, ValueError, "broadcasts"),
        ({"row_lengths": torch.ones(2)}, TypeError, "float32; pass a tensor of int64"),
        ({"col_lengths": torch.ones(3, dtype=torch.int64)}, ValueError, "broadcasts"),
        ({"row_lengths": torch.tensor([0, 3])}, ValueError, "row_lengths has 0; pass lengths from 1 to 3"),
        ({"col_lengths": torch.tensor([4, 5])}, ValueError, "col_lengths has 5; pass lengths from 1 to 4"),
        ({"log_row_marginals": torch.zeros(3), "backward": "implicit"}, ValueError, "takes no marginals"),
        (
            {"log_row_marginals": torch.zeros(3), "log_col_marginals": torch.zeros(4)},
            ValueError, "sums to 3 and exp.log_col_marginals. to 4 in matrix 0",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        sinkhorn(X, **{"form": "log", **options})
