"""The sharding rules with two gloo processes: batch dimensions shard, matrix dimensions are gathered."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
from processes import WORLD

from helion_sinkhorn import dot_compress, nn, recurrent_linear_attention, sinkhorn

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

FORMS = ("deepseek", "log")
# placements of the logits and of the upstream gradient
CASES = {
    "batch": (Shard(0), Shard(0)),
    "second batch dimension": (Shard(1), Shard(1)),
    "replicated": (Replicate(), Replicate()),
    "rows": (Shard(2), Shard(2)),
    "columns": (Shard(-1), Shard(-1)),
    "partial logits": (Partial(), Replicate()),
    "batch, upstream replicated": (Shard(0), Replicate()),
    "batch, upstream partial": (Shard(0), Partial()),
    "batch, upstream rows": (Shard(0), Shard(2)),
    "replicated, upstream batch": (Replicate(), Shard(0)),
}
NO_COMMUNICATION = {"batch", "second batch dimension", "replicated", "batch, upstream replicated"}


def randn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def distribute(x, mesh, placement):
    if isinstance(placement, Partial):
        # halves, whose sum is exact
        return DTensor.from_local(x / WORLD, mesh, [placement])
    return distribute_tensor(x, mesh, [placement])


class Uncounted(contextlib.nullcontext):
    """Stands in for CommDebugMode, which compilation refuses."""

    def __enter__(self):
        return self

    def get_total_counts(self):
        return None


def compare(f, x, dp, mesh, placements, mode=CommDebugMode) -> dict:
    """f on distributed tensors against f on the same local ones, bit for bit."""
    leaf = x.clone().requires_grad_()
    expected = f(leaf)
    (expected_dx,) = torch.autograd.grad(expected, leaf, dp)
    distributed = distribute(x, mesh, placements[0]).requires_grad_()
    upstream = distribute(dp, mesh, placements[1])
    with mode() as forward:
        p = f(distributed)
    with mode() as backward:
        p.backward(upstream)
    dx = distributed.grad
    return {
        "placements": (str(p.placements[0]), str(dx.placements[0])),
        "local rows": tuple(p.to_local().shape),
        "communication": (forward.get_total_counts(), backward.get_total_counts()),
        "value": torch.equal(p.full_tensor(), expected),
        "gradient": torch.equal(dx.full_tensor(), expected_dx),
    }


ATTENTION = {
    "sequences": (Shard(0), "g g_gamma gk gv"),
    "heads": (Shard(2), "g g_gamma gk gv"),
    "steps": (Shard(1), "gk"),
    "replicated": (Replicate(), "g_gamma"),
    "packed sequences": (Shard(0), "g_gamma packed"),
    "packed heads": (Shard(2), "g_gamma packed"),
}
"""Placement of q, k, v, and what is given beside them."""


def attention(mesh, placement, given) -> dict:
    """Results and gradients of recurrent_linear_attention, distributed against local."""
    batch, steps, heads, dk, dv = 1 if "packed" in given else 3, 6, 3, 4, 2
    offsets = torch.tensor([0, 2, 6]) if "packed" in given else None
    shapes = {
        "q": (batch, steps, heads, dk), "k": (batch, steps, heads, dk), "v": (batch, steps, heads, dv),
        "g": (batch, steps, heads), "g_gamma": (heads,), "gk": (batch, steps, heads, dk),
        "gv": (batch, steps, heads, dv), "initial_state": (2 if "packed" in given else batch, heads, dk, dv),
    }  # fmt: skip
    names = [*"qkv", *(name for name in shapes if name in given.split()), "initial_state"]
    tensors = {name: -randn(*shapes[name], seed=k).abs() for k, name in enumerate(names)}

    def run(make):
        leaves = {name: make(name, x).requires_grad_() for name, x in tensors.items()}
        packed = None if offsets is None else make("cu_seqlens", offsets)
        o, state = recurrent_linear_attention(**leaves, cu_seqlens=packed, output_final_state=True)
        (o.square().sum() + state.sum()).backward()
        return o, state, *(x.grad for x in leaves.values())

    placed = {name: placement if name in ("q", "k", "v", "gk") else Replicate() for name in shapes}
    local = run(lambda name, x: x.clone())
    distributed = run(lambda name, x: distribute(x.clone(), mesh, placed.get(name, Replicate())))
    return {
        "placements": str(distributed[0].placements[0]),
        "equal": {n: torch.allclose(a.full_tensor(), b, rtol=1e-5, atol=1e-6)
                  for n, a, b in zip(["o", "state", *names], distributed, local, strict=True)},
    }  # fmt: skip


def every_case(mesh) -> dict:
    # 5 matrices do not divide by two
    x, dp = randn(5, 2, 4, 4, seed=0), randn(5, 2, 4, 4, seed=1)
    outcomes = {}
    # before any eager call: the sharding rule is registered while Dynamo traces
    compiled = torch.compile(sinkhorn, fullgraph=True, backend="aot_eager")
    try:
        outcomes["compiled"] = compare(compiled, x, dp, mesh, CASES["batch"], Uncounted)
    except Exception as error:
        outcomes["compiled"] = {"error": str(error)}
    for form in FORMS:
        for name, placements in CASES.items():
            outcomes[name, form] = compare(
                lambda x, form=form: sinkhorn(x, form=form), x, dp, mesh, placements
            )
    for name, placements in CASES.items():
        outcomes[name, "implicit"] = compare(
            lambda x: sinkhorn(x, backward="implicit"), x, dp, mesh, placements
        )
        # M = D = K: one tensor serves as x, y and z
        outcomes[name, "dot_compress"] = compare(
            lambda x: dot_compress(x, 2 * x, -x), x, dp, mesh, placements
        )
    for name, (placement, gates) in ATTENTION.items():
        outcomes["attention", name] = attention(mesh, placement, gates)
    outcomes["module"] = compare(nn.FusedMHC(5), x, dp, mesh, CASES["batch"])
    with torch.no_grad():
        p = sinkhorn(distribute(x, mesh, Shard(0)), out_dtype=torch.bfloat16)
    outcomes["no grad"] = torch.equal(p.full_tensor(), sinkhorn(x, out_dtype=torch.bfloat16))
    return outcomes


@pytest.fixture(scope="module")
def ranks(on_two_processes):
    """What each process found."""
    return on_two_processes(every_case)


@pytest.mark.parametrize("kind", [*FORMS, "implicit", "dot_compress"])
@pytest.mark.parametrize("case", CASES)
def test_distributed_equals_local(ranks, case, kind):
    for outcome in ranks:
        assert outcome[case, kind]["value"]
        assert outcome[case, kind]["gradient"]


@pytest.mark.parametrize("kind", ["deepseek", "implicit", "dot_compress"])
@pytest.mark.parametrize("case", sorted(NO_COMMUNICATION))
def test_batch_dimensions_shard_without_communication(ranks, case, kind):
    placement = str(CASES[case][0])
    for outcome in ranks:
        assert outcome[case, kind]["placements"] == (placement, placement)
        assert outcome[case, kind]["communication"] == (0, 0)


def test_each_process_holds_its_share(ranks):
    assert [outcome["batch", "deepseek"]["local rows"] for outcome in ranks] == [(3, 2, 4, 4), (2, 2, 4, 4)]
    columns = [outcome["second batch dimension", "deepseek"]["local rows"] for outcome in ranks]
    assert columns == [(5, 1, 4, 4)] * 2


@pytest.mark.parametrize("kind", ["deepseek", "dot_compress"])
@pytest.mark.parametrize("case", ["rows", "columns"])
def test_matrix_dimensions_are_gathered(ranks, case, kind):
    for outcome in ranks:
        assert outcome[case, kind]["placements"][0] not in (str(Shard(2)), str(Shard(3)))
        assert outcome[case, kind]["communication"][0] > 0


def test_modules_take_distributed_logits(ranks):
    for outcome in ranks:
        assert outcome["module"]["value"]
        assert outcome["module"]["gradient"]
        assert outcome["module"]["communication"] == (0, 0)
        assert outcome["no grad"]


def test_compiled_function_of_distributed_logits(ranks):
    for outcome in ranks:
        assert "error" not in outcome["compiled"], outcome["compiled"]["error"]
        assert outcome["compiled"]["value"]
        assert outcome["compiled"]["gradient"]
        assert outcome["compiled"]["placements"] == (str(Shard(0)), str(Shard(0)))


@pytest.mark.parametrize("case", ATTENTION)
def test_linear_attention_of_distributed_tensors_equals_local(ranks, case):
    for outcome in ranks:
        assert all(outcome["attention", case]["equal"].values()), outcome["attention", case]
    kept = {"sequences": Shard(0), "heads": Shard(2), "packed heads": Shard(2)}.get(case, Replicate())
    assert outcome["attention", case]["placements"] == str(kept)
