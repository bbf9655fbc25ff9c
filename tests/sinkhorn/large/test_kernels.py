"""The bodies for large matrices, run eagerly by Helion's reference mode, against float64."""

from __future__ import annotations

import functools

import pytest
import torch
from autograd_calls import assert_equal, randn, value_and_gradient
from large_calls import assert_near, exact, given, on, results
from reference_mode import each_device

from helion_sinkhorn import reference
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.configs.store import key_of
from helion_sinkhorn.lab.sinkhorn.logits import make_logits
from helion_sinkhorn.ops.sinkhorn.large import calls, launch, space
from helion_sinkhorn.ops.sinkhorn.large.sides import Matrices

BY_NIGHT = pytest.mark.nightly(
    "half a second to a second each; other sizes and logits of the same kind run always"
)
by_launches = functools.partial(results, launch)
each_read = pytest.mark.parametrize("longest", [8192, 16], ids=["one read", "two reads"])


@pytest.mark.parametrize("sides", [False, True])
@pytest.mark.parametrize(("first", "n_iters"), [("rows", 1), ("cols", 2), ("rows", 6)])
@pytest.mark.parametrize(
    ("n", "m"), [(33, 130), (40, 33), *(pytest.param(*s, marks=BY_NIGHT) for s in ((40, 56), (64, 64)))]
)
def test_values_and_gradients(n, m, n_iters, first, sides):
    inputs = given(n, m, sides)
    launched, true = (of(inputs, n_iters, first, temperature=0.7) for of in (by_launches, exact))
    assert_near(launched, true)


@pytest.mark.parametrize("group", [1, 3])
def test_groups_of_matrices_do_not_show(group, monkeypatch):
    inputs = given(40, 36, True, batch=4)
    whole = by_launches(inputs, 3, "rows")
    monkeypatch.setattr(launch, "GROUP_BYTES", group * 40 * 36 * 4)
    # reference mode sums whole batches, in an order of their size; equal bits are the gate's
    assert_near(by_launches(inputs, 3, "rows"), whole)


@pytest.mark.parametrize("first", ["rows", "cols"])
@pytest.mark.parametrize("n", [24, 40, 45])
def test_pieces_of_a_gradient_of_16_bits_do_not_show(n, first, monkeypatch):
    inputs = given(n, n, True, batch=2, dtype=torch.bfloat16)
    whole = by_launches(inputs, 3, first)
    monkeypatch.setattr(launch, "SCRATCH_BYTES", 2 * 4 * n * 23)
    pieces = launch.pieces(inputs[0], True)
    assert {k for _, rows in pieces for k in range(n)[rows]} == {*range(n)}
    assert len(pieces) > 1
    assert all(rows.start % 8 == 0 and rows.stop - rows.start <= 23 for _, rows in pieces)
    # reference mode sums rows in an order of their number
    assert_near(by_launches(inputs, 3, first), whole)


@pytest.mark.parametrize("kind", ["column_below", "randn_30", "identity_like", "masked", "lines_apart"])
@pytest.mark.parametrize("n_iters", [1, 5])
@each_device
def test_peaked_logits(kind, n_iters, device):
    """As near to float64 as potentials in float32 are: they round an exponent as large as the logits."""
    x = make_logits(kind, 2, 48, 40, dtype=torch.float32)
    inputs, largest = given(48, 40, False, x=x), x[x.isfinite()].abs().max().item()
    launched = by_launches(on(device, inputs), n_iters, "rows")
    assert_near(launched, exact(inputs, n_iters, "rows"), 2e-7 * max(30.0, 2 * largest))


@each_read
@pytest.mark.parametrize("first", ["rows", "cols"])
@pytest.mark.parametrize(("m", "column"), [(36, 7), (33, 32)])
def test_lines_without_mass(m, column, first, longest):
    x, r, c, *upstream = given(40, m, True)
    r[:, 5], c[:, column] = -torch.inf, -torch.inf
    r, c = r.log_softmax(-1) + 3.0, c.log_softmax(-1) + 3.0
    x[:, 5], x[:, :, column] = -torch.inf, -torch.inf
    upstream[1][:, 5], upstream[2][:, column] = 0.0, 0.0
    inputs = x, r, c, *upstream
    launched, true = by_launches(inputs, 4, first, longest=longest), exact(inputs, 4, first)
    for t in (launched[0], launched[3]):
        assert t[:, 5].eq(0).all()
        assert t[:, :, column].eq(0).all()
    assert launched[1][:, 5].eq(-torch.inf).all()
    assert_near(*([t.masked_fill(t == -torch.inf, 0.0) for t in of] for of in (launched, true)))


def of_eps(module, x, dy, n_iters, first, eps, **own):
    """P and dX of the deepseek form."""
    matrices = Matrices(x, eps=eps, first=first)
    made = module.forward(matrices, n_iters, True, x.dtype, **own)
    return made[0], module.backward(dy, None, None, matrices, *made[3:], **own)[0]


def specified(x, dy, n_iters, first, eps, dtype=torch.float64):
    """The same by the specification and autograd."""
    form = {"form": "deepseek", "eps": eps} if eps else {"form": "log"}
    return value_and_gradient(
        lambda t: reference.sinkhorn(t, n_iters, first=first, **form), x.to(dtype), dy.to(dtype)
    )


@each_read
@pytest.mark.parametrize("eps", [0.0, 1e-9, 1e-6, 1e-2])
@pytest.mark.parametrize(
    ("n", "m", "first", "n_iters"),
    [
        (40, 56, "rows", 1), (40, 56, "rows", 2), (33, 130, "cols", 3), (33, 130, "rows", 7),
        pytest.param(36, 300, "rows", 40, marks=pytest.mark.nightly("2 to 4 s each; 7 run always")),
        pytest.param(40, 36, "rows", 1000, marks=pytest.mark.nightly("20 to 80 s each in reference mode")),
    ],
)  # fmt: skip
def test_both_forms_by_one_read_and_by_two(n, m, first, n_iters, eps, longest):
    x, dy = randn(2, n, m, scale=2), randn(2, n, m, seed=1)
    launched = of_eps(launch, x, dy, n_iters, first, eps, longest=longest)
    for a, b in zip(launched, specified(x, dy, n_iters, first, eps), strict=True):
        assert (a.double() - b).abs().max() <= 2e-6 * b.abs().max()


PEAKED = {
    "300 randn": lambda: 300 * randn(2, 48, 40), "3000 randn": lambda: 3000 * randn(2, 48, 40),
    "identity": lambda: make_logits("identity_like", 2, 48, 48, dtype=torch.float32),
    "identity of 16": lambda: make_logits("identity_like_16", 2, 48, 48, dtype=torch.float32),
    "c i j": lambda: (40 * torch.linspace(0, 1, 48)[:, None] * torch.linspace(0, 48, 40))[None],
    "a column that loses": lambda: make_logits("column_below", 2, 48, 40, dtype=torch.float32),
    "masked": lambda: make_logits("masked", 2, 48, 40, dtype=torch.float32),
}  # fmt: skip
ALWAYS = "3000 randn", "c i j", "a column that loses", "masked"


@pytest.mark.parametrize("kind", [pytest.param(k, marks=() if k in ALWAYS else BY_NIGHT) for k in PEAKED])
@pytest.mark.parametrize(("longest", "n_iters"), [(8192, 20), (16, 1)], ids=["one read", "two reads"])
@each_device
def test_peaked_logits_of_the_deepseek_form(kind, n_iters, longest, device):
    """No potential is as large as the logits: six times the error of float32 autograd, or rounding."""
    x = PEAKED[kind]()
    dy = randn(*x.shape, seed=1)
    launched = of_eps(launch, x.to(device), dy.to(device), n_iters, "rows", 1e-6, longest=longest)
    true, plain = (specified(x, dy, n_iters, "rows", 1e-6, t) for t in (torch.float64, torch.float32))
    for a, b, exact_one in zip(launched, plain, true, strict=True):
        # a gradient that vanishes is nothing to float32
        size = exact_one.abs().max().clamp(min=1e-30)
        error, of_plain = ((t.cpu().double() - exact_one).abs().max() / size for t in (a, b))
        assert error <= 6 * of_plain + 8 * 2.0**-23, (error, of_plain)


@each_read
@pytest.mark.parametrize("kind", ["3000 randn", "c i j", "a column that loses"])
@pytest.mark.parametrize("n_iters", [3, pytest.param(20, marks=BY_NIGHT)])
def test_potentials_of_thousands_leave_no_error(kind, n_iters, longest):
    """Rounded, they would make lines' sums wrong by 1e-4, and P and dX as much."""
    x = PEAKED[kind]()
    dy = randn(*x.shape, seed=1)
    p, dx = of_eps(launch, x, dy, n_iters, "rows", 0.0, longest=longest)
    true_p, true_dx = specified(x, dy, n_iters, "rows", 0.0)
    assert (p.double() - true_p).abs().max() <= 1e-6 * true_p.abs().max()
    # a gradient that nearly vanishes has what rounding leaves of the upstream one
    assert (dx.double() - true_dx).abs().max() <= 1e-6 * true_dx.abs().max() + 2.0**-24 * dy.abs().max()


@each_read
def test_near_a_permutation_the_first_sums_are_looked_at_twice(longest):
    """One look leaves errors of 7e-6 and 2e-5."""
    x, dy = 14 / 16 * make_logits("identity_like_16", 2, 130, 130), randn(2, 130, 130, seed=2)
    _, dx = of_eps(launch, x, dy, 3, "rows", 0.0, longest=longest)
    _, true = specified(x, dy, 3, "rows", 0.0)
    assert (dx.double() - true).abs().max() <= 4e-6 * true.abs().max()


@each_read
@pytest.mark.parametrize("eps", [1e-12, 1e-6])
def test_an_upstream_gradient_may_have_any_scale(eps, longest):
    """u v is as large as 1 / eps, and a product of it with an upstream gradient left float32's range."""
    x, dy = 4 * randn(2, 40, 36), randn(2, 40, 36, seed=1)
    given = 3, "rows", eps
    _, dx = of_eps(launch, x, dy, *given, longest=longest)
    for power in (2.0**90, 2.0**-60) if eps == 1e-12 else (2.0**40,):
        assert torch.equal(of_eps(launch, x, dy * power, *given, longest=longest)[1], dx * power)


@pytest.mark.parametrize("eps", [0.0, 1e-6])
@each_read
@pytest.mark.parametrize("n_iters", [1, 2, 5])
def test_without_a_gradient_nothing_is_kept(n_iters, longest, eps):
    """Two vectors in turn beside the first one."""
    x, r, c, *_ = given(40, 36, not eps)
    kept, made = (
        launch.forward(Matrices(x, r, c, eps), n_iters, keep, x.dtype, longest=longest)
        for keep in (True, False)
    )
    assert [len(t) for t in made[3:]] == [0, 0]
    assert_equal(made[:3], kept[:3])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("eps", [0.0, 1e-6, 1e-9])
@each_read
def test_narrow_types_are_rounded_once(dtype, longest, eps):
    x, r, c, dy, df, dg = given(40, 36, not eps, dtype=dtype)
    upstream = (None, None) if eps else (df, dg)

    def results(x, dy):
        matrices = Matrices(x, r, c, eps)
        outputs = launch.forward(matrices, 3, True, x.dtype, longest=longest)
        return *outputs[:3], *launch.backward(dy, *upstream, matrices, *outputs[3:], longest=longest)

    narrow, wide = results(x, dy), results(x.float(), dy.float())
    assert_equal(narrow, [b.to(a.dtype) for a, b in zip(narrow, wide, strict=True)])


@pytest.mark.parametrize(
    ("n", "m", "dtype", "step"),
    [
        (1024, 1024, torch.float32, 8),
        (1025, 1025, torch.float32, 8),
        (1025, 1025, torch.bfloat16, 16),
        (1025, 1026, torch.bfloat16, 16),
        (1026, 1026, torch.float32, 8),
        (3001, 3001, torch.float32, 4),
    ],
)
def test_every_group_begins_at_a_boundary_of_a_vector(n, m, dtype, step):
    x = torch.empty(17, 1, 1, dtype=dtype).expand(17, n, m)
    parts = launch.together(x)
    assert [k for part in parts for k in range(17)[part]] == [*range(17)]
    assert {part.stop - part.start for part in parts} == {step}
    for part in parts:
        for nbytes in (n * m * dtype.itemsize, 4 * n, 4 * m):
            assert part.start * nbytes % 16 == 0


def test_groups_of_a_gradient_follow_the_narrowest_tensor(monkeypatch):
    x, r, c, dy, df, dg = given(40, 36, True)
    seen = []
    monkeypatch.setattr(launch, "together", lambda t, *ranks: seen.append(t.dtype) or [slice(len(t))])
    by_launches((x, r, c, dy.bfloat16(), df, dg), 2, "rows")
    assert seen == [torch.float32, torch.bfloat16, torch.bfloat16]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [300, 98304])
def test_a_transposed_matrix_is_read_by_whole_sectors(columns, dtype, device):
    """DINO's columns are normalised first: line by line, one entry of every 32 bytes would be used."""
    x = torch.empty(1, 1229, columns, dtype=dtype, device="meta")
    apart, beside = calls.call_of(x.mT), calls.call_of(x.mT.contiguous())
    assert (apart.turned, beside.turned) == (True, False)
    assert apart.key == key_of({**dict(beside.key), "turned": True})
    assert "turned" not in dict(beside.key)
    (block,) = dict(space.rows_default(apart, DEVICES[device])[0])["block_sizes"]
    ((_, rows),) = space.rows_default(apart, DEVICES[device])[1]
    assert (block * 4, rows * x.element_size() >= 32) == (32, True)
    # whatever has no matrix among its operands does not ask how one lies
    assert calls.for_kernel("sinkhorn_large_gather", apart) == beside
    assert calls.for_kernel("sinkhorn_large_step", apart) == apart


@pytest.mark.parametrize("first", ["rows", "cols"])
def test_a_plan_names_the_config_that_is_launched(first, monkeypatch):
    """A call makes logits contiguous: those of a transpose got the config of what they are not."""
    x, asked, choose = randn(2, 160, 150).mT, {}, launch.chosen_for

    def chosen_for(kernel, call, *others):
        asked.setdefault(kernel.name, []).append(call)
        return choose(kernel, call, *others)

    for module in (launch, calls):
        monkeypatch.setattr(module, "chosen_for", chosen_for)
    launch.describe(x, first, 0.0)
    launch.forward(Matrices(x, first=first), 3, False, torch.float32)
    described, *launched = asked["sinkhorn_large_step"]
    assert {described} == {*launched}
