"""Matrices whose rows two processes share."""

from __future__ import annotations

from unittest import mock

import pytest
import sinkhorn_ranks as ranks
import torch
from sinkhorn_ranks import FIRSTS, SHARED, WITHOUT
from torch.distributed.tensor import Shard

from helion_sinkhorn import reference
from helion_sinkhorn.ops.sinkhorn import distributed
from helion_sinkhorn.ops.sinkhorn.large.marginals import Transport
from helion_sinkhorn.recipes import sinkhorn_knopp_teacher

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def assert_near(tensors, true, tolerance):
    for a, b in zip(tensors, true, strict=True):
        assert a.shape == b.shape
        assert (a.double() - b).abs().max() <= tolerance * b.abs().max()


@pytest.mark.parametrize("first", FIRSTS)
@pytest.mark.parametrize(("share", "dtype"), SHARED)
@pytest.mark.parametrize("name", WITHOUT)
def test_parts_are_the_parts_of_the_whole(on_two_processes, name, first, share, dtype):
    joined = [torch.cat(parts, 1) for parts in zip(
        *(of[name, first, share, dtype] for of in on_two_processes(ranks.of_group)), strict=True
    )]  # fmt: skip
    true = ranks.differentiated(
        lambda logits: reference.sinkhorn(logits, first=first, **WITHOUT[name]), {"logits": ranks.logits()},
        ranks.upstream(),
    )  # fmt: skip
    assert_near(joined, true, TOLERANCE[dtype])


def test_sums_that_lie_apart(on_two_processes):
    """NCCL refuses them, and so do these processes."""
    for rank, whole in enumerate(on_two_processes(ranks.of_sums_apart)):
        assert torch.equal(whole, torch.tensor([3.0, *[rank + 1.0] * 3]).expand(3, 4))


@pytest.mark.parametrize("first", FIRSTS)
@pytest.mark.parametrize(("share", "dtype"), SHARED)
def test_marginals(on_two_processes, first, share, dtype):
    """The columns' marginals are whole on each rank, and so is their gradient."""
    true = ranks.differentiated(
        lambda **given: reference.sinkhorn(n_iters=4, form="log", first=first, **given),
        {"logits": ranks.logits(), **ranks.marginals()}, ranks.upstream(),
    )  # fmt: skip
    one, other = (of["marginals", first, share, dtype] for of in on_two_processes(ranks.of_group))
    assert_near([torch.cat(t, 1) for t in zip(one[:-1], other[:-1], strict=True)], true[:-1],
                TOLERANCE[dtype])  # fmt: skip
    assert_near([one[-1], other[-1]], [true[-1]] * 2, TOLERANCE[dtype])


def test_potentials_and_their_gradients(on_two_processes):
    """The gradients of g on both ranks add up."""
    given = {"logits": ranks.logits(), **ranks.marginals()}
    (df, dg), (_, dg_of_other) = (ranks.upstream_of_potentials(rank) for rank in range(2))

    def potentials(logits, log_row_marginals, log_col_marginals):
        return reference.potentials(logits, 3, log_row_marginals, log_col_marginals)

    f, g, dx, dr, dc = ranks.differentiated(potentials, given, df, dg + dg_of_other)
    one, other = on_two_processes(ranks.of_potentials)
    assert_near([torch.cat([one[k], other[k]], 1) for k in (0, 2, 3)], [f, dx, dr], 1e-11)
    for of in one, other:
        assert_near([of[1], of[4]], [g, dc], 1e-11)
    assert torch.equal(one[1], other[1])


def test_an_iteration_adds_up_once(on_two_processes):
    """Whichever side is first, forward and backward; float64 restarts nowhere in 13 iterations."""
    for of in on_two_processes(ranks.of_counts):
        assert set(map(tuple, of.values())) == {(10, 10)}


@pytest.mark.parametrize("form", ["log", "deepseek"])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_dtensors(on_two_processes, dim, form):
    """Sharded over the batch, the rows or the columns: results are placed as the logits are."""
    true = ranks.differentiated(
        lambda logits: reference.sinkhorn(logits, 4, form=form), {"logits": ranks.logits()}, ranks.upstream()
    )
    for of in on_two_processes(ranks.of_dtensors):
        *tensors, placements, stride = of[form, dim]
        assert_near(tensors, true, 1e-12)
        assert placements == [(Shard(dim),)] * 2
        assert stride == ranks.logits().stride()


def test_a_teacher_s_batch_is_sharded(on_two_processes):
    whole = sinkhorn_knopp_teacher(ranks.logits()[0], 0.1, 3)
    joined = torch.cat(on_two_processes(ranks.of_teacher))
    torch.testing.assert_close(joined, whole, rtol=0, atol=1e-12)
    alone = torch.cat([sinkhorn_knopp_teacher(t, 0.1, 3) for t in ranks.logits()[0].split([19, 171])])
    assert (alone - whole).abs().max() > 0.01


def test_parts_by_the_kernels(on_two_processes):
    """Lines longer than a program has whole are added up over the ranks too."""
    one, other = on_two_processes(ranks.of_launches)
    for first, form, n_iters in ranks.LAUNCHED:
        key = first, form, n_iters
        (p, f, g), (p_of_other, f_of_other, g_of_other) = one[key], other[key]
        x = ranks.logits() / (0.5 if form == "log" else 1.0)
        true = reference.sinkhorn(x, n_iters, form=form, first=first)
        assert_near([torch.cat([p, p_of_other], 1)], [true], 2e-6)
        if form == "log":
            # potentials of 100 are rounded by 4e-6
            potentials = torch.cat([f, f_of_other], 1), g
            assert_near(potentials, reference.potentials(x, n_iters, first=first), 1e-6)
        assert torch.equal(g, g_of_other)


@pytest.mark.parametrize("rank_needs_it", [0, 1])
def test_all_ranks_take_pytorch_if_one_needs_it(rank_needs_it, monkeypatch):
    """A rank with few rows, or with a gradient: the sums of the others would have no partner."""
    x = torch.zeros(2, 40, 50)
    asked = []

    def add(counts, groups, how):
        asked.append(counts[2].item())
        counts += torch.tensor([40, 0, rank_needs_it])

    monkeypatch.setattr(distributed, "reduce_over", add)
    monkeypatch.setattr(distributed, "resolve_large", lambda *given: "helion")
    group = mock.Mock(group_name="two")
    for options, own in (({}, 0), ({"log_rows": torch.zeros(40), "log_columns": torch.zeros(50)}, 1)):
        part = distributed.shared(x, group, "rows", "auto", "exact", Transport(**options))
        assert part.by_kernels == (not own and not rank_needs_it)
        assert part.lines == 80
    assert not distributed.shared(x.requires_grad_(), group, "rows", "auto", "exact", Transport()).by_kernels
    assert asked == [0, 1, 1]


def test_what_is_refused(on_two_processes):
    words = {
        "no rows": "ValueError: 1 of the ranks have no rows; each must have at least one",
        "kernels": "NotImplementedError: implementation='helion' needs whole matrices",
        "implicit": "ValueError: backward='implicit' needs whole matrices",
        "lengths": "ValueError: row_lengths and col_lengths need whole matrices",
        "rows alone": "ValueError: log_row_marginals is given, and log_col_marginals is not; pass both",
        "no group": "TypeError: group is 'the first'; pass a torch.distributed.ProcessGroup",
    }
    for of in on_two_processes(ranks.of_refusals):
        for name, begins in words.items():
            assert of[name].startswith(begins)
