"""Every operator of DTensors on two processes: tokens shard, and what is of one token is gathered."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from attention_problem import problem
from autograd_calls import randn
from contract import ROWS, listed, upstream_of
from operator_table import VARIANTS
from processes import WORLD
from shared import NIGHTLY

from helion_sinkhorn import nn, recurrent_linear_attention, sinkhorn

torch_tensor = pytest.importorskip("torch.distributed.tensor")
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.debug import CommDebugMode  # noqa: E402

# placements of the tokens' tensors and of the upstream gradients
CASES = {
    "tokens": (Shard(0), Shard(0)),
    "second token dimension": (Shard(1), Shard(1)),
    "replicated": (Replicate(), Replicate()),
    "first of an entry": (Shard(2), Replicate()),
    "last of an entry": (Shard(-1), Shard(-1)),
    "partial": (Partial(), Replicate()),
    "tokens, upstream replicated": (Shard(0), Replicate()),
    "tokens, upstream partial": (Shard(0), Partial()),
    "tokens, upstream of an entry": (Shard(0), Shard(2)),
    "replicated, upstream tokens": (Replicate(), Shard(0)),
}
FREE = {"tokens", "second token dimension", "replicated", "tokens, upstream replicated"}
"""Where nothing is sent."""
GATHERED = "first of an entry", "last of an entry"
ALWAYS = "sinkhorn", "hc_mixes"
"""One without and one with parameters, on whose placements every kind of upstream gradient is tried."""
OPERATORS = (
    "sinkhorn", "sinkhorn, log", "sinkhorn, implicit", "dot_compress", "dot_compress, without z",
    "hc_split_sinkhorn", "hc_split_sinkhorn, reduced", "hc_mixes", "hc_mixes, merged",
    "hc_mixes, prenorm", "hc_pre", "hc_post", "hc_post, merged", "hc_post, without bias", "hc_site",
    "hc_boundary",
)  # fmt: skip


BY_NIGHT = pytest.mark.nightly("other options of an operator; its own placements are tried always")
each_operator = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=BY_NIGHT if name in VARIANTS else ()) for name in OPERATORS]
)


def cases_of(name):
    """Other options of an operator make no other placements."""
    every = name in ALWAYS or (NIGHTLY and name not in VARIANTS)
    return [case for case in CASES if every or case in FREE or case in GATHERED]


def distribute(x, mesh, placement, offset=0):
    if isinstance(placement, Partial):
        # halves, whose sum is exact
        return DTensor.from_local(x / WORLD, mesh, [placement])
    if isinstance(placement, Shard):
        d = placement.dim % x.dim() if placement.dim < 0 else placement.dim + offset
        placement = Shard(d) if d < x.dim() else Replicate()
    return distribute_tensor(x, mesh, [placement])


def offset_of(dims):
    """How many dimensions stand before the tokens'."""
    return dims[0] if dims else 0


def compared(name, mesh, case, used=None, **options) -> dict:
    """Results and gradients on distributed tensors equal the ones of one process."""
    row, (placement, of_upstream) = ROWS[name], CASES[case]
    # 5 tokens do not divide by two
    given, dims = row.arguments(5, 4, **options), row.token_dims()
    leaves = [x.clone().requires_grad_() for x in given.values()]
    expected = listed(row.function(*leaves))
    upstream = upstream_of(expected)
    used = range(len(expected)) if used is None else used
    wanted = {"allow_unused": True, "materialize_grads": True}
    truth = torch.autograd.grad([expected[k] for k in used], leaves, [upstream[k] for k in used], **wanted)
    spread = [
        distribute(x, mesh, placement if dims[n] else Replicate(), offset_of(dims[n])).requires_grad_()
        for n, x in given.items()
    ]
    with CommDebugMode() as forward:
        results = listed(row.function(*spread))
    sent = [distribute(g, mesh, of_upstream) for g in upstream]
    with CommDebugMode() as backward:
        gradients = torch.autograd.grad([results[k] for k in used], spread, [sent[k] for k in used], **wanted)
    pairs = [*zip(results, expected, strict=True), *zip(gradients, truth, strict=True)]
    of_tokens = [True] * len(results) + [bool(dims[n]) for n in given]
    return {
        "placements": [str(a.placements[0]) for a, _ in pairs],
        "offsets": [0] * len(results) + [offset_of(dims[n]) for n in given],
        "of tokens": of_tokens,
        "local": results[0].to_local().size(0),
        "communication": (forward.get_total_counts(), backward.get_total_counts()),
        "equal": [torch.equal(a.full_tensor(), b) for a, b in pairs],
        "apart": [
            float((a.full_tensor() - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs
        ],
    }


PACKED = {"shape": (1, 6, 3, 4, 2), "lengths": (2, 4)}
ATTENTION = {
    "sequences": (Shard(0), "g g_gamma gk gv", {}),
    "heads": (Shard(2), "g g_gamma gk gv", {}),
    "steps": (Shard(1), "gk", {}),
    "replicated": (Replicate(), "g_gamma", {}),
    "packed sequences": (Shard(0), "g_gamma", PACKED),
    "packed heads": (Shard(2), "g_gamma", PACKED),
}
"""Placement of q, k, v, the gates, and other options."""


def attention(mesh, placement, gates, options) -> dict:
    """Results and gradients of recurrent_linear_attention, distributed against local."""
    case = problem(gates, **{"shape": (3, 6, 3, 4, 2), **options})

    def placed(name, x):
        return distribute(x, mesh, placement if name in ("q", "k", "v", "gk") else Replicate())

    inputs = {name: placed(name, x) for name, x in case.inputs.items()}
    upstream = {"do": placed("do", case.do), "dend": placed("dend", case.dend)}
    local = case.run(recurrent_linear_attention)
    results = dataclasses.replace(case, inputs=inputs, **upstream).run(recurrent_linear_attention)
    return {
        "placements": str(results["o"].placements[0]),
        "equal": {
            n: torch.allclose(results[n].full_tensor(), x, rtol=1e-5, atol=1e-6) for n, x in local.items()
        },
    }


def of_matrices(mesh, function) -> list:
    """(placement, whether right) of a value and its gradient, of logits whose first dimension is sharded."""
    x, dp = (randn(5, 2, 4, 4, seed=seed) for seed in (0, 1))
    leaf, spread = x.clone().requires_grad_(), distribute(x, mesh, Shard(0)).requires_grad_()
    p, expected = function(spread), function(leaf)
    p.backward(distribute(dp, mesh, Shard(0)))
    expected.backward(dp)
    pairs = (p, expected), (spread.grad, leaf.grad)
    return [(str(a.placements[0]), torch.equal(a.full_tensor(), b)) for a, b in pairs]


def every_case(mesh) -> dict:
    # before any eager call: the sharding rule is registered while Dynamo traces
    compiled = torch.compile(sinkhorn, fullgraph=True, backend="aot_eager")
    outcomes = {"compiled": of_matrices(mesh, compiled), "module": of_matrices(mesh, nn.FusedMHC(5))}
    for name in [name for name in OPERATORS if NIGHTLY or name not in VARIANTS]:
        for case in cases_of(name):
            outcomes[name, case] = compared(name, mesh, case)
        if all(ROWS[name].token_dims()[n] for n in ROWS[name].streams):
            outcomes[name, "narrow"] = compared(name, mesh, "tokens", streams=torch.bfloat16)
        outcomes[name, "first result"] = compared(name, mesh, "tokens", used=(0,))
    for name, of in ATTENTION.items():
        outcomes["attention", name] = attention(mesh, *of)
    with torch.no_grad():
        x = randn(5, 2, 4, 4)
        p = sinkhorn(distribute(x, mesh, Shard(0)), out_dtype=torch.bfloat16)
    outcomes["no grad"] = torch.equal(p.full_tensor(), sinkhorn(x, out_dtype=torch.bfloat16))
    return outcomes


@pytest.fixture(scope="module")
def ranks(on_two_processes):
    """What each process found."""
    return on_two_processes(every_case)


@each_operator
def test_distributed_equals_one_process(ranks, name):
    """Gradients of parameters are two partial sums of 10 tokens, or one of 20, that nothing rounded."""
    for outcome in ranks:
        for case in (*cases_of(name), "narrow", "first result"):
            report = outcome.get((name, case))
            if report is None:
                continue
            assert all(e for e, t in zip(report["equal"], report["of tokens"], strict=True) if t), case
            assert max(a for a, t in zip(report["apart"], report["of tokens"], strict=True)) < 1e-6, case


@each_operator
def test_tokens_shard_without_communication_and_entries_are_gathered(ranks, name):
    for outcome in ranks:
        for case in FREE:
            report, placement = outcome[name, case], CASES[case][0]
            assert report["communication"] == (0, 0), case
            sharded = isinstance(placement, Shard)
            for given, offset, of_tokens in zip(
                report["placements"], report["offsets"], report["of tokens"], strict=True
            ):
                if of_tokens:
                    assert given == (f"S({placement.dim + offset})" if sharded else "R"), case
                else:
                    assert given.startswith("P" if sharded else "R"), case
        for case in GATHERED:
            assert outcome[name, case]["communication"][0] > 0
    assert [outcome[name, "tokens"]["local"] for outcome in ranks] == [3, 2]
    assert [outcome[name, "second token dimension"]["local"] for outcome in ranks] == [5, 5]


def test_compiled_of_a_module_and_without_a_gradient(ranks):
    for outcome in ranks:
        assert outcome["no grad"]
        assert outcome["compiled"] == outcome["module"] == [("S(0)", True)] * 2


@pytest.mark.parametrize("case", ATTENTION)
def test_linear_attention_of_distributed_tensors_equals_local(ranks, case):
    for outcome in ranks:
        assert all(outcome["attention", case]["equal"].values()), outcome["attention", case]
    kept = {"sequences": Shard(0), "heads": Shard(2), "packed heads": Shard(2)}.get(case, Replicate())
    assert outcome["attention", case]["placements"] == str(kept)
