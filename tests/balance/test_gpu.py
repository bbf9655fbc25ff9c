"""sinkhorn_balance on a CUDA or ROCm device, against float64 on the CPU.

`make accuracy` tests the passes of all workloads there, steps too, and that their bits are the same again and
in any batch.
"""

from __future__ import annotations

import balance_ranks
import pytest
import torch
from balance_ranks import MODEL, WORKLOADS
from cuda_graphs import capture
from processes import WORLD, Ranks

from helion_sinkhorn import reference, sinkhorn_balance
from helion_sinkhorn.lab.balance.evidence import truths
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.optim import SinkhornBalanced

pytestmark = pytest.mark.gpu

DEVICE = "cuda"


def run(update, **options):
    return sinkhorn_balance(update.to(DEVICE), implementation="helion", **options)


def test_cuda_graphs_and_another_stream():
    (update,) = BalanceWorkload("graph", 1, frozenset(), "", 256, 3000).make_inputs(device=DEVICE)
    expected, other = run(-update), update.clone()
    graph, captured = capture(lambda: run(other))
    other.neg_()
    graph.replay()
    assert torch.equal(captured, expected)


def test_a_captured_step_takes_the_learning_rate_of_its_replay():
    params, others = ([torch.ones(300, 64, device=DEVICE).requires_grad_() for _ in range(2)] for _ in "ab")
    lr = torch.tensor(0.1, device=DEVICE)
    optimizer, eager = SinkhornBalanced(params, lr), SinkhornBalanced(others, lr)
    for k, (p, other) in enumerate(zip(params, others, strict=True)):
        (update,) = BalanceWorkload("step", 1, frozenset(), "", 64, 300).make_inputs(k, DEVICE)
        p.grad, other.grad = update[0], update[0].clone()
    optimizer.step()
    eager.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    lr.fill_(0.3)
    graph.replay()
    eager.step()
    for p, other in zip(params, others, strict=True):
        assert torch.equal(p, other)


def test_compiled():
    (update,) = BalanceWorkload("compiled", 1, frozenset(), "", 128, 300).make_inputs(device=DEVICE)
    assert torch.equal(torch.compile(sinkhorn_balance, fullgraph=True)(update), run(update))


def test_memory_beside_the_result():
    """Sums of at most 2,112 shares of 1,024 columns have 9 MB, whatever the number of rows."""
    update = torch.randn(20000, 1024, device=DEVICE)
    run(update)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run(update)
    assert torch.cuda.max_memory_allocated() - before <= update.nbytes + (16 << 20)


def test_more_than_two_to_the_31_elements():
    n = 4096
    rows = (1 << 31) // n + 5
    update = torch.zeros(rows, n, dtype=torch.bfloat16, device=DEVICE)
    (few,) = BalanceWorkload("few", 1, frozenset(), "", n, 40, torch.bfloat16, "normal").make_inputs()
    update[-40:] = few[0].to(DEVICE)
    run(update, out=update)
    expected = reference.sinkhorn_balance(few[0].double())
    assert not update[:-40].any()
    assert ((update[-40:].cpu() - expected).abs() <= 2.0**-8 * expected.abs() + 1e-6).all()


def test_rows_on_two_gpus():
    """sinkhorn_balance of a group, of DTensors, and a step of their optimizer, also under FSDP2."""
    if torch.cuda.device_count() < WORLD:
        pytest.skip(f"{WORLD} GPUs are needed")
    ranks = Ranks("cuda")
    parts, tensors, stepped, sharded = map(
        ranks, (balance_ranks.of_group, balance_ranks.of_dtensors, balance_ranks.of_optimizer,
                balance_ranks.of_fsdp)
    )  # fmt: skip
    ranks.stop()
    for name, share in parts[0]:
        (update,) = WORKLOADS[name].make_inputs()
        whole = torch.cat([of[name, share] for of in parts], 1)
        assert truths(WORKLOADS[name], update)["u"].judge(whole).reasons == [], (name, share)
    (update,) = MODEL.make_inputs()
    for of in tensors:
        for how in (False, "out"):
            assert truths(MODEL, update)["u"].judge(of[1, how][0]).reasons == []
    for w in stepped:
        torch.testing.assert_close(w, balance_ranks.optimized_alone(), rtol=1e-5, atol=1e-6)
    for w in sharded:
        torch.testing.assert_close(w, balance_ranks.fsdp_alone(), rtol=1e-4, atol=1e-5)
