"""sinkhorn_balance of rows that two processes share."""

from __future__ import annotations

import balance_ranks
import pytest
import torch
from balance_ranks import MODEL, SHARES, WORKLOADS
from torch.distributed.tensor import Shard

from helion_sinkhorn import sinkhorn_balance
from helion_sinkhorn.lab.balance.evidence import truths


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("share", SHARES)
def test_parts_are_the_parts_of_the_whole(on_two_processes, name, share):
    """Within the budget of the whole matrix: the mean norm and the column norms are over all rows."""
    balanced = torch.cat([of[name, share] for of in on_two_processes(balance_ranks.of_group)], 1)
    assert truths(WORKLOADS[name], *WORKLOADS[name].make_inputs())["u"].judge(balanced).reasons == []


@pytest.mark.parametrize("how", [False, True, "out"])
@pytest.mark.parametrize("dim", [1, 0])
def test_dtensors(on_two_processes, dim, how):
    """As FSDP2 shards: uneven parts of rows, or matrices of a batch; eager, compiled, written to `out`."""
    (update,) = MODEL.make_inputs()
    for of in on_two_processes(balance_ranks.of_dtensors):
        whole, placements, stride = of[dim, how]
        assert truths(MODEL, update)["u"].judge(whole).reasons == []
        assert (placements, stride) == ((Shard(dim),), update.stride())


def test_an_optimizer_of_dtensors(on_two_processes):
    for weights in on_two_processes(balance_ranks.of_optimizer):
        torch.testing.assert_close(weights, balance_ranks.optimized_alone(), rtol=1e-5, atol=1e-6)


def test_an_optimizer_under_fsdp2(on_two_processes):
    for weights in on_two_processes(balance_ranks.of_fsdp):
        torch.testing.assert_close(weights, balance_ranks.fsdp_alone(), rtol=1e-4, atol=1e-5)


def test_a_process_without_rows_takes_part(on_two_processes):
    update = balance_ranks.few()
    expected = sinkhorn_balance(update)
    for rank, of in enumerate(on_two_processes(balance_ranks.of_few_rows)):
        part = expected[rank:]
        for name, right in {"part": part, "out": part, "DTensor": expected, "step": expected}.items():
            assert of[name].shape == right.shape
            torch.testing.assert_close(of[name], right, rtol=1e-5, atol=1e-6)


def test_placements_that_are_refused(on_two_processes):
    for of in on_two_processes(balance_ranks.of_dtensors):
        assert of["replicated"] == ""
        for name in ("columns", "partial"):
            assert "a row must be whole: call .redistribute" in of[name]
