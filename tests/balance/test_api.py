"""sinkhorn_balance on a CPU: values against float64, what torch sees of it, errors, passes by themselves."""

from __future__ import annotations

import math

import pytest
import torch
from autograd_calls import dynamic_frames
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from helion_sinkhorn import reference, sinkhorn_balance
from helion_sinkhorn.lab.balance.evidence import truths
from helion_sinkhorn.lab.balance.workloads import ROWS, BalanceWorkload
from helion_sinkhorn.ops.balance import eager, launch
from helion_sinkhorn.ops.balance.launch import Launches
from helion_sinkhorn.ops.balance.options import BalanceOptions
from helion_sinkhorn.runtime import pieces

NARROW = (torch.bfloat16, torch.float16)
OPERATORS = torch.ops.helion_sinkhorn


def drawn(b=2, m=40, n=24, dtype=torch.float32, values="model", seed=0):
    return BalanceWorkload("drawn", b, frozenset(), "", n, m, dtype, values).make_inputs(seed)[0]


@pytest.mark.parametrize(
    "options", [{}, {"first": "cols"}, {"steps": 4, "scale": "none"}, {"eps": 0.5}], ids=str
)
def test_float64_is_the_specification(options):
    update = drawn(dtype=torch.float64)
    expected = reference.sinkhorn_balance(update, **options)
    torch.testing.assert_close(sinkhorn_balance(update, **options), expected, rtol=1e-13, atol=1e-13)


def test_the_steps_number_by_number():
    """Two rows that stay and one that is masked: rows, columns, rows, by loops."""
    rows, eps = [[3.0, -4.0, 1.0], [0.5, 2.0, 8.0], [1e-4, 2e-4, 0.0]], 1e-20
    balanced = sinkhorn_balance(torch.tensor(rows, dtype=torch.float64), steps=3)
    u = [*rows[:2], [0.0, 0.0, 0.0]]
    for k in range(3):
        if k % 2 == 0:
            norms = [math.sqrt(sum(x * x for x in row)) for row in u]
            u = [[x / (norm + eps) for x in row] for row, norm in zip(u, norms, strict=True)]
        else:
            norms = [math.sqrt(sum(row[j] ** 2 for row in u)) for j in range(3)]
            u = [[x / (norm + eps) for x, norm in zip(row, norms, strict=True)] for row in u]
    expected = torch.tensor(u, dtype=torch.float64) * math.sqrt(3)
    torch.testing.assert_close(balanced, expected, rtol=1e-14, atol=0.0)


@given(
    st.integers(0, 3), st.integers(0, 30), st.integers(1, 40), st.integers(1, 7),
    st.sampled_from(("rows", "cols")), st.sampled_from((0.0, 1e-3, 0.5)),
    st.sampled_from((torch.float32, *NARROW)), st.integers(0, 9),
)  # fmt: skip
def test_any_call_against_float64(b, m, n, steps, first, threshold, dtype, seed):
    update = drawn(b, m, n, dtype, "normal", seed)
    options = {"steps": steps, "first": first, "zero_row_threshold": threshold}
    norms = update.double().norm(dim=-1)
    edge = threshold * norms.mean(-1, keepdim=True)
    if ((norms - edge).abs() <= 1e-5 * edge).any():
        return  # rows that rounding may take for either
    balanced = sinkhorn_balance(update, **options)
    assert (balanced.dtype, balanced.shape) == (update.dtype, update.shape)
    if update.numel():
        workload = BalanceWorkload("", 1, frozenset(), "", dtype=dtype, settings=BalanceOptions(**options))
        assert truths(workload, update)["u"].worst(balanced) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_pieces_and_the_matrices_around_change_no_bit(dtype, monkeypatch):
    update = drawn(5, 90, 33, dtype)
    whole = sinkhorn_balance(update)
    for part in (slice(0, 1), slice(3, 5), slice(0, 5, 2)):
        assert torch.equal(sinkhorn_balance(update[part]), whole[part])
    assert torch.equal(sinkhorn_balance(update[2]), whole[2])
    assert torch.equal(sinkhorn_balance(update.expand(2, 3, *update.shape))[1, 2], whole)
    monkeypatch.setattr(pieces, "ENTRIES", 33 * 20)
    in_pieces = sinkhorn_balance(update)
    assert torch.equal(sinkhorn_balance(update[3]), in_pieces[3])
    torch.testing.assert_close(in_pieces, whole)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_layouts_and_out(device):
    update = drawn().to(device)
    before, expected = update.clone(), sinkhorn_balance(update)
    assert torch.equal(update, before)
    shifted = update.new_empty(update.numel() + 1)[1:].view(update.shape).copy_(update)
    for other in (update.mT.contiguous().mT, torch.stack([update, update], -1)[..., 1], shifted):
        assert torch.equal(sinkhorn_balance(other), expected)
    for out in (
        torch.empty_like(update),
        torch.empty_like(update.mT.contiguous()).mT,
        update.mT.contiguous().mT,
    ):
        assert sinkhorn_balance(update, out=out) is out
        assert torch.equal(out, expected)
    into = torch.zeros(2, 40, 2, 24, device=device)
    sinkhorn_balance(update, out=into[:, :, 1])
    assert torch.equal(into[:, :, 1], expected)
    assert not into[:, :, 0].any()
    assert sinkhorn_balance(update, out=update) is update
    assert torch.equal(update, expected)


@pytest.mark.parametrize("shape", [(0, 4), (0, 3, 4), (3, 0, 4), (2, 0, 3, 4)], ids=str)
def test_nothing_is_balanced_to_nothing(shape):
    update = torch.zeros(shape)
    assert sinkhorn_balance(update).shape == shape
    assert sinkhorn_balance(update, out=update) is update


@pytest.mark.parametrize("apart", [-24, 1, 8, 24 * 40 - 1])
def test_out_may_not_share_a_part_of_the_update(apart):
    memory = drawn(1, 120, 24).flatten()
    update, out = (memory[first : first + 960].view(40, 24) for first in (960, 960 + apart))
    before = memory.clone()
    with pytest.raises(ValueError, match=f"out begins {4 * abs(apart)} bytes from update and shares part"):
        sinkhorn_balance(update, out=out)
    assert torch.equal(memory, before)


def test_out_may_share_the_memory_of_the_update():
    """Beside it, as another view of the whole, or where one of both is copied anyway."""
    memory = drawn(1, 120, 24).flatten()
    square, wide = memory[:576].view(24, 24), memory[:1920].view(40, 2, 24)
    for update, out in (
        (memory[:960].view(40, 24), memory[960:1920].view(40, 24)),
        (square, square.T),
        (square.T, square),
        (square.T, square.T),
        (wide[:, 0], wide[:, 1]),
        (wide[:20].flatten(0, 1)[:39], wide[:, 1][1:]),
    ):
        memory.copy_(drawn(1, 120, 24).flatten())
        expected = sinkhorn_balance(update)
        assert torch.equal(sinkhorn_balance(update, out=out), expected)


@pytest.mark.parametrize(
    ("bad", "threshold"), [(math.nan, 1e-3), (math.nan, 0.0), (math.inf, 1e-3), (math.inf, 0.0)]
)
def test_what_is_not_finite_stays_in_its_matrix(bad, threshold):
    update = drawn(3)
    expected = sinkhorn_balance(update, zero_row_threshold=threshold)
    update[1, 2, 3] = bad
    balanced = sinkhorn_balance(update, zero_row_threshold=threshold)
    assert torch.equal(balanced[::2], expected[::2])
    # no row has a norm beyond a mean that is infinite
    zeros = bad == math.inf and threshold > 0
    assert not balanced[1].any() if zeros else balanced[1].isnan().any()


def test_zeros_stay_zeros():
    assert not sinkhorn_balance(torch.zeros(3, 5, 4)).any()
    update = drawn(1, 20, 9)
    update[..., 4] = 0.0
    balanced = sinkhorn_balance(update)
    assert not balanced[..., 4].any()
    assert balanced.isfinite().all()


def test_autocast_changes_nothing():
    update = drawn()
    with torch.autocast("cpu", torch.bfloat16):
        balanced = sinkhorn_balance(update)
    assert torch.equal(balanced, sinkhorn_balance(update))


def schema_call(update, **options):
    return update, *BalanceOptions(**options), [], "pytorch"


@pytest.mark.parametrize(
    "update", [drawn(), drawn(0), drawn().mT, drawn(dtype=torch.bfloat16)[0]], ids=lambda t: str(t.shape)
)
def test_opcheck(update):
    torch.library.opcheck(OPERATORS.sinkhorn_balance.default, schema_call(update))
    first, *rest = schema_call(update)
    torch.library.opcheck(OPERATORS.sinkhorn_balance_into.default, (first, torch.zeros_like(first), *rest))


def test_fakes_have_the_metadata_of_what_runs():
    for update in (drawn(), drawn().mT, drawn(0), drawn(dtype=torch.float16)[..., ::2]):
        with FakeTensorMode() as mode:
            fake = sinkhorn_balance(mode.from_tensor(update))
        real = sinkhorn_balance(update)
        assert (fake.shape, fake.dtype) == (real.shape, real.dtype)
        assert not real.numel() or fake.stride() == real.stride()
    assert sinkhorn_balance(drawn().to("meta")).device.type == "meta"


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_vmap(dim):
    each = [drawn(seed=k) for k in range(3)]
    mapped = torch.vmap(sinkhorn_balance, in_dims=dim)(torch.stack(each, dim))
    assert torch.equal(mapped, torch.stack([sinkhorn_balance(t) for t in each]))


def test_vmap_with_out_is_refused():
    with pytest.raises(NotImplementedError, match="sinkhorn_balance has no vmap with out; leave out out"):
        torch.vmap(lambda t: sinkhorn_balance(t, out=t))(drawn())


def test_small_columns_stay_and_an_infinity_with_and_without_a_threshold():
    """The limits that docs/balance.md states."""
    update = drawn(1, 40, 24, values="normal")[0]
    update[:, 3] *= 1e-26
    balanced = sinkhorn_balance(update, zero_row_threshold=0.0)
    assert balanced[:, 3].norm() < 1e-20
    assert (balanced.square().mean(-1) - 1).abs().max() < 1e-5
    update[5, 7] = math.inf
    assert not sinkhorn_balance(update).any()
    balanced = sinkhorn_balance(update, zero_row_threshold=0.0)
    assert not balanced[5].any()
    assert balanced[:5].isnan().all()
    assert balanced[6:].isnan().all()


def test_compiled_and_exported():
    update = drawn()
    expected = sinkhorn_balance(update)
    compiled = torch.compile(sinkhorn_balance, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(update), expected)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def twice(t):
        sinkhorn_balance(t, out=t)
        return t + 1

    other = update.clone()
    assert torch.equal(twice(other), expected + 1)
    assert torch.equal(other, expected)

    class Balance(torch.nn.Module):
        def forward(self, x):
            return sinkhorn_balance(x)

    exported = torch.export.export(Balance(), (update,)).module()
    assert torch.equal(exported(update), expected)


def test_other_sizes_are_compiled_once():
    assert dynamic_frames(sinkhorn_balance, [(drawn(2, 20 + k, 9 + 2 * k),) for k in range(3)]) == 1


def test_no_gradient():
    update, said = drawn().requires_grad_(), r"sinkhorn_balance has no gradient.*torch.no_grad\(\)"
    for call in (
        lambda: sinkhorn_balance(update),
        lambda: sinkhorn_balance(update.detach(), out=torch.empty_like(update) * update),
        lambda: torch.func.grad(lambda t: sinkhorn_balance(t).sum())(update.detach()),
        lambda: torch.func.jvp(sinkhorn_balance, (update.detach(),), (update.detach(),)),
        lambda: OPERATORS.sinkhorn_balance(*schema_call(update)).sum().backward(),
        lambda: torch.compile(sinkhorn_balance, backend="aot_eager")(update).sum().backward(),
    ):
        with pytest.raises(Exception, match=said):
            call()
    with torch.no_grad():
        assert not sinkhorn_balance(update).requires_grad
        sinkhorn_balance(update, out=update)


def test_autograd_sees_what_is_written():
    saved = drawn().requires_grad_()
    product = (saved * (out := drawn(seed=1))).sum()
    with torch.no_grad():
        sinkhorn_balance(saved, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


F32 = torch.ones(2, 3, 4)
REFUSED = {
    "a list": (([1.0],), {}, TypeError, r"update is a list; pass a torch.Tensor of shape \(..., m, n\)"),
    "integers": ((F32.long(),), {}, TypeError, "update has dtype torch.int64; accepted are"),
    "a vector": ((F32[0, 0],), {}, ValueError, r"update has shape \(4,\); pass \(\.\.\., m, n\)"),
    "no columns": ((F32[..., :0],), {}, ValueError, "whose rows have an entry"),
    "no steps": ((F32,), {"steps": 0}, ValueError, "steps is 0"),
    "half a step": ((F32,), {"steps": 1.5}, TypeError, "steps is"),
    "threshold": ((F32,), {"zero_row_threshold": -1.0}, ValueError, "zero_row_threshold is -1.0; pass"),
    "threshold of a string": ((F32,), {"zero_row_threshold": "1"}, TypeError, "zero_row_threshold is"),
    "no eps": ((F32,), {"eps": 0.0}, ValueError, "eps is 0.0; pass a finite float of at least 1e-30"),
    "eps": ((F32,), {"eps": math.inf}, ValueError, "eps is inf"),
    "scale": ((F32,), {"scale": "rms"}, ValueError, "use one of 'row_rms'"),
    "first": ((F32,), {"first": "columns"}, ValueError, "use one of 'rows', 'cols'"),
    "out of another dtype": ((F32,), {"out": F32.half()}, TypeError, "out has dtype torch.float16, update"),
    "out of another shape": ((F32,), {"out": F32[:1]}, ValueError, r"out has shape \(1, 3, 4\).*\(2, 3, 4\)"),
    "out elsewhere": ((F32,), {"out": F32.to("meta")}, ValueError, "out is on meta, update on cpu"),
    "group": ((F32,), {"group": "x"}, TypeError, "group is 'x'; pass a torch.distributed.ProcessGroup"),
    "implementation": ((F32,), {"implementation": "cuda"}, ValueError, "use one of 'auto'"),
    "helion on a CPU": ((F32,), {"implementation": "helion"}, NotImplementedError, "update is on cpu; use"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "options", "kind", "said"), REFUSED.values(), ids=REFUSED)
def test_refused_with_what_to_do(arguments, options, kind, said):
    with pytest.raises(kind, match=said):
        sinkhorn_balance(*arguments, **options)


def test_rows_that_are_masked_are_not_read():
    """All passes after the norms give the same whatever they hold, and weights of these rows stay."""
    (update,) = next(w for w in ROWS if w.name == "balance_model").make_inputs()
    live = update.norm(dim=2) > 0.05
    x = torch.where(live.unsqueeze(2), update, torch.nan)
    passes, d = Launches(), live.float()
    c, outcomes = torch.rand(update.size(0), update.size(2)), []
    for of in (update, x):
        sums, stepped = passes.squares(of, c, d, passes.order(live), 1e-20, True, True)
        out = torch.empty_like(of)
        passes.finish(of, c, stepped, out, 1e-20, True, 1.0)
        w = torch.where(live.unsqueeze(2), update.flip(2), torch.inf)
        passes.update(of, c, stepped, w, torch.ones(1), 1e-20, True)
        assert w[~live].isinf().all()
        outcomes.append((sums, stepped, out, w))
    assert not live.all()
    assert outcomes[0][3][live].isfinite().all()
    assert all(map(torch.equal, *outcomes))


def test_nan_reaches_the_weights():
    """By the kernels as by PyTorch: a row step makes d NaN, and the row is no masked one."""
    x, w = torch.ones(1, 8, 4), torch.ones(1, 8, 4)
    x[0, 3, 2] = torch.nan
    d = torch.ones(1, 8)
    d[0, 3], d[0, 5] = torch.nan, 0.0
    for passes in (Launches(), eager):
        passes.update(x, torch.ones(1, 4), d, moved := w.clone(), torch.ones(1), 1e-20, True)
        assert moved[0, 3].isnan().all()
        assert torch.equal(moved[0, 5], w[0, 5])
        assert moved[0, [0, 1, 2, 4, 6, 7]].isfinite().all()


def test_the_order_has_each_row_once_and_the_masked_ones_last():
    live = torch.rand(3, 50) < 0.4
    rows, count = Launches().order(live)
    assert count.tolist() == live.sum(1).tolist()
    for k, of in enumerate(rows.view(3, 50)):
        assert of[: count[k]].tolist() == (live[k].nonzero().flatten() + 50 * k).tolist()
        assert sorted(of.tolist()) == [*range(50 * k, 50 * k + 50)]


def test_shares_do_not_depend_on_the_batch():
    one, many = (Launches()._shares(torch.empty(b, 5000, 256)) for b in (1, 9))
    assert one == many > 1
    assert launch.call_for(256, torch.float32).columns == 256
