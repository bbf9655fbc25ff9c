"""The torch operators of hc_split_sinkhorn: autograd, compilers, functorch, autocast, DTensor."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal, randn
from targets import INDUCTOR_BY_NIGHT
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from helion_sinkhorn import Reduce, hc_split_sinkhorn, reference

FORWARD = torch.ops.helion_sinkhorn.hc_split_sinkhorn.default
BACKWARD = torch.ops.helion_sinkhorn.hc_split_sinkhorn_backward.default
CONSTANTS = 4, 20, 1e-6, 2.0, 1e-6, 0.0, "io", "pytorch"
OTHERS = 4, 3, 0.0, 1.5, 1e-2, 1e-3, "oi", "pytorch"


def inputs(*lead, n=4, seed=0, dtype=torch.float32):
    """(mixes, scale, base, dpre, dpost, dcomb)."""
    columns = n * n + 2 * n
    return (
        randn(*lead, columns, seed=seed, dtype=dtype),
        torch.tensor([0.7, 1.1, 0.9]) * (1 + seed),
        *(
            randn(*shape, seed=seed + k)
            for k, shape in enumerate(((columns,), (*lead, n), (*lead, n), (*lead, n, n)), 1)
        ),
    )


def results(mixes, scale, base, *upstream, f=hc_split_sinkhorn):
    """The three results and the three gradients."""
    leaves = [t.detach().requires_grad_() for t in (mixes, scale, base)]
    found = f(*leaves)
    return *(y.detach() for y in found), *torch.autograd.grad(found, leaves, upstream)


def assert_close(found, expected, rtol=1e-5, atol=1e-5):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.mT.contiguous().mT,
    "one token": lambda t: t[0, 0],
    "strided": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda t: t[:1].expand_as(t),
    "empty": lambda t: t[:, :0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck(layout):
    constants, dtype = (OTHERS, torch.bfloat16) if layout == "one token" else (CONSTANTS, torch.float32)
    mixes, scale, base, *_ = inputs(2, 5)
    mixes = LAYOUTS[layout](mixes)
    given = mixes, scale, base
    upstream = [randn(*mixes.shape[:-1], *shape, seed=k) for k, shape in enumerate(((4,), (4,), (4, 4)))]
    leaves = [t.detach().requires_grad_() for t in given]
    torch.library.opcheck(FORWARD, (*leaves, *constants, dtype))
    torch.library.opcheck(BACKWARD, (*upstream, *given, *constants))
    if layout == "contiguous":
        torch.library.opcheck(FORWARD, (*given, *OTHERS, torch.float64))
        torch.library.opcheck(BACKWARD, (upstream[0], None, None, *given, *OTHERS))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_fakes_have_the_metadata_of_what_runs(layout, dtype):
    given = LAYOUTS[layout](inputs(2, 5, dtype=dtype)[0]), *inputs()[1:3]
    upstream = [torch.ones(*given[0].shape[:-1], *shape) for shape in ((4,), (4,), (4, 4))]
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def both(*tensors):
        forward = FORWARD(*tensors[:3], *CONSTANTS, wide)
        return *forward, *BACKWARD(*tensors[3:], *tensors[:3], *CONSTANTS)

    found = both(*given, *upstream)
    with FakeTensorMode() as mode:
        fake = both(*[mode.from_tensor(t) for t in (*given, *upstream)])
    for a, b in zip(found, fake, strict=True):
        assert (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)


def test_meta_device():
    mixes, scale, base, *upstream = [t.to("meta") for t in inputs(2, 5, dtype=torch.bfloat16)]
    found = results(mixes, scale, base, *upstream)
    assert [tuple(t.shape) for t in found] == [(2, 5, 4), (2, 5, 4), (2, 5, 4, 4), (2, 5, 24), (3,), (24,)]
    assert {t.device.type for t in found} == {"meta"}
    assert [t.dtype for t in found] == [torch.float32] * 3 + [torch.bfloat16] + [torch.float32] * 2


def test_the_operator_is_what_the_function_runs():
    mixes, scale, base, *upstream = inputs(3, 7)
    assert_equal(
        FORWARD(mixes, scale, base, *CONSTANTS, torch.float32), hc_split_sinkhorn(mixes, scale, base)
    )
    dmixes, sums = BACKWARD(*upstream, mixes, scale, base, *CONSTANTS)
    found = dmixes, sums[24:], sums[:24]
    assert_equal(found, results(mixes, scale, base, *upstream)[3:])


def test_compiled_and_at_any_number_of_tokens():
    torch._dynamo.reset()
    compiled = torch.compile(hc_split_sinkhorn, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (3, 5, 8):
        given = inputs(2, tokens, seed=tokens)
        assert_equal(results(*given, f=compiled), results(*given))
    with torch.no_grad():
        assert_equal(compiled(*given[:3]), hc_split_sinkhorn(*given[:3]))


def test_compiled_without_recompiling_for_other_tokens():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(hc_split_sinkhorn, fullgraph=True, backend=counter)
    for tokens in (3, 5, 8, 13):
        given = [t for t in inputs(tokens, seed=tokens)]
        torch._dynamo.mark_dynamic(given[0], 0)
        leaves = [t.requires_grad_() for t in given[:3]]
        found = compiled(*leaves)
        gradients = torch.autograd.grad(found, leaves, given[3:])
        assert_equal([*(y.detach() for y in found), *gradients], results(*given))
    assert counter.frame_count == 1


@INDUCTOR_BY_NIGHT
def test_compiled_by_inductor():
    given = inputs(6)

    def f(mixes, scale, base):
        pre, post, comb = hc_split_sinkhorn(mixes * 2, scale, base, 4, 5)
        return pre, post.sin(), comb

    assert_close(results(*given, f=torch.compile(f, fullgraph=True)), results(*given, f=f))


def test_compiled_with_some_results_unused():
    mixes, scale, base, dpre, *_ = inputs(6)

    def f(mixes, scale, base):
        return hc_split_sinkhorn(mixes, scale, base)[0]

    torch._dynamo.reset()
    both = []
    for g in (f, torch.compile(f, fullgraph=True, backend="aot_eager")):
        leaves = [t.detach().requires_grad_() for t in (mixes, scale, base)]
        both.append(torch.autograd.grad(g(*leaves), leaves, dpre))
    assert_equal(*both)


class Site(torch.nn.Module):
    """A site of a model: parameters and a call."""

    def __init__(self):
        super().__init__()
        _, scale, base, *_ = inputs()
        self.scale, self.base = torch.nn.Parameter(scale), torch.nn.Parameter(base)

    def forward(self, mixes):
        return hc_split_sinkhorn(mixes, self.scale, self.base, 4, 20, 1e-6)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_program_runs_at_other_token_counts(strict):
    tokens, site = torch.export.Dim("tokens", min=2), Site()
    program = torch.export.export(site, (inputs(2, 3)[0],), dynamic_shapes=({1: tokens},), strict=strict)
    assert sum(node.target is FORWARD for node in program.graph.nodes) == 1
    for count in (2, 7):
        mixes = inputs(2, count, seed=count)[0]
        assert_equal(program.module()(mixes), site(mixes))


@pytest.mark.parametrize("dims", [(0, None, None), (1, None, None), (-1, None, None), (0, 0, 0), (2, 1, 1),
                                  (None, 0, 0), (0, None, 0), (None, 0, None)], ids=str)  # fmt: skip
def test_vmap(dims):
    each = [inputs(2, 5, seed=k)[:3] for k in range(3)]
    stacked = []
    for k, d in enumerate(dims):
        stacked.append(each[0][k] if d is None else torch.stack([one[k] for one in each], d))
    found = torch.vmap(hc_split_sinkhorn, in_dims=dims)(*stacked)
    expected = [
        hc_split_sinkhorn(*(each[0][k] if d is None else one[k] for k, d in enumerate(dims))) for one in each
    ]
    assert_close(found, [torch.stack(parts) for parts in zip(*expected, strict=True)], 1e-6, 1e-6)


def test_vmap_of_nothing():
    mixes, scale, base, *_ = inputs(0, 5)
    assert torch.vmap(hc_split_sinkhorn, (0, None, None))(mixes, scale, base)[2].shape == (0, 5, 4, 4)
    many = torch.vmap(hc_split_sinkhorn)(mixes, scale.expand(0, 3), base.expand(0, 24))
    assert [tuple(y.shape) for y in many] == [(0, 5, 4), (0, 5, 4), (0, 5, 4, 4)]


def loss(mixes, scale, base, dpre, dpost, dcomb):
    pre, post, comb = hc_split_sinkhorn(mixes, scale, base)
    return (pre * dpre).sum() + (post * dpost).sum() + (comb * dcomb).sum()


@pytest.mark.parametrize("of_parameters", [False, True], ids=["shared parameters", "parameters of each"])
@pytest.mark.parametrize("how", ["grad", "vjp"])
def test_gradients_of_each_sample(how, of_parameters):
    """dscale and dbase of each sample are of its tokens alone, also where the parameters are shared."""
    each = [inputs(5, seed=k) for k in range(3)]
    mixes, scale, base, *upstream = [torch.stack(parts) for parts in zip(*each, strict=True)]
    if not of_parameters:
        scale, base = each[0][1:3]

    def gradient(mixes, scale, base, *upstream):
        if how == "grad":
            return torch.func.grad(loss, argnums=(0, 1, 2))(mixes, scale, base, *upstream)
        return torch.func.vjp(hc_split_sinkhorn, mixes, scale, base)[1](upstream)

    d = 0 if of_parameters else None
    found = torch.vmap(gradient, in_dims=(0, d, d, 0, 0, 0))(mixes, scale, base, *upstream)
    expected = [results(m, *((s, b) if of_parameters else (scale, base)), *g)[3:] for m, s, b, *g in each]
    assert_close(found, [torch.stack(parts) for parts in zip(*expected, strict=True)], 1e-6, 1e-6)
    assert (found[1][0] - found[1][1]).abs().max() > 1e-2


def test_gradient_of_a_vmapped_call():
    """Outside of the map the gradients of shared parameters are sums over it."""
    mixes, scale, base, *upstream = inputs(3, 5)
    mapped = results(
        mixes,
        scale,
        base,
        *upstream,
        f=lambda m, s, b: torch.vmap(hc_split_sinkhorn, (0, None, None))(m, s, b),
    )
    assert_close(mapped, results(mixes, scale, base, *upstream))


def test_batched_gradients_and_jacobian():
    mixes, scale, base, *_ = inputs(2)
    leaves = [t.requires_grad_() for t in (mixes, scale, base)]
    found = hc_split_sinkhorn(*leaves)
    upstream = [randn(3, *y.shape, seed=9 + k) for k, y in enumerate(found)]
    batched = torch.autograd.grad(found, leaves, upstream, retain_graph=True, is_grads_batched=True)
    each = [torch.autograd.grad(found, leaves, one, retain_graph=True) for one in zip(*upstream, strict=True)]
    assert_close(batched, [torch.stack(parts) for parts in zip(*each, strict=True)], 1e-6, 1e-6)

    def comb(f):
        return lambda *t: f(*t)[2]

    one = [t.detach().double() for t in (mixes[0], scale, base)]
    jacobian = torch.func.jacrev(comb(hc_split_sinkhorn), argnums=(0, 1, 2))(*one)
    expected = torch.func.jacrev(comb(reference.hc_split_sinkhorn), argnums=(0, 1, 2))(*one)
    assert_close(jacobian, expected, 1e-10, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_changes_no_bit(dtype):
    given = inputs(3, 5, dtype=dtype)
    plain = results(*given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (randn(2, 2) @ randn(2, 2)).dtype == torch.bfloat16
        assert_equal(results(*given), plain)
        torch._dynamo.reset()
        compiled = torch.compile(hc_split_sinkhorn, fullgraph=True, backend="aot_eager")
        assert_equal(results(*given, f=compiled), plain)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint(use_reentrant):
    given = inputs(3, 5)

    def f(*tensors):
        return checkpoint(hc_split_sinkhorn, *tensors, use_reentrant=use_reentrant)

    mixes, scale, base, *upstream = given
    leaves = [t.clone().requires_grad_() for t in (mixes, scale, base)]
    found = f(*leaves)
    torch.autograd.backward(found, upstream)
    assert_equal((*found, *(t.grad for t in leaves)), results(*given))


def test_only_the_arguments_are_kept():
    mixes, scale, base, *_ = [t.requires_grad_() for t in inputs(3, 5)]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        hc_split_sinkhorn(mixes, scale, base)
    assert {t.data_ptr() for t in kept} == {t.data_ptr() for t in (mixes, scale, base)}


def test_second_derivatives_and_forward_mode_say_what_to_do():
    mixes, scale, base, dpre, dpost, dcomb = inputs(2)
    mixes.requires_grad_()
    found = hc_split_sinkhorn(mixes, scale, base)
    (dmixes,) = torch.autograd.grad(found, mixes, (dpre, dpost, dcomb), create_graph=True)
    with pytest.raises(
        NotImplementedError, match=r"no second derivative.*helion_sinkhorn\.reference\.hc_split_sinkhorn"
    ):
        dmixes.sum().backward()
    (dmixes,) = torch.autograd.grad(hc_split_sinkhorn(mixes, scale, base)[0].sum(), mixes, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        dmixes.sum().backward()
    for k in range(3):
        given = [t.detach() for t in (mixes, scale, base)]

        def f(t, k=k, given=given):
            return hc_split_sinkhorn(*given[:k], t, *given[k + 1 :])

        with pytest.raises(
            NotImplementedError, match=r"no forward-mode derivative.*reference\.hc_split_sinkhorn"
        ):
            torch.func.jvp(f, (given[k],), (given[k],))


# --- DTensor ---------------------------------------------------------------------------------------------

CASES = {
    "tokens": "Shard(0)",
    "second token dimension": "Shard(1)",
    "replicated": "Replicate()",
    "columns": "Shard(2)",
}
"""Placement of mixes and, but for the columns, of the upstream gradients."""


def distributed(mesh, name: str, missing: bool) -> dict:
    """Results and gradients on distributed tensors against those of one process."""
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    placement = eval(CASES[name], {"Shard": Shard, "Replicate": Replicate})
    of_upstream = Replicate() if name == "columns" else placement
    # 5 tokens do not divide by two
    mixes, scale, base, *upstream = inputs(5, 4)
    leaves = [t.clone().requires_grad_() for t in (mixes, scale, base)]
    spread = [
        distribute_tensor(t, mesh, [p]).requires_grad_()
        for t, p in zip((mixes, scale, base), (placement, Replicate(), Replicate()), strict=True)
    ]
    used = (0, 2) if missing else (0, 1, 2)
    expected = hc_split_sinkhorn(*leaves)
    truth = torch.autograd.grad([expected[k] for k in used], leaves, [upstream[k] for k in used])
    with CommDebugMode() as forward:
        found = hc_split_sinkhorn(*spread)
    given = [distribute_tensor(g, mesh, [of_upstream]) for g in upstream]
    with CommDebugMode() as backward:
        gradients = torch.autograd.grad([found[k] for k in used], spread, [given[k] for k in used])
    return {
        "placements": [str(t.placements[0]) for t in (*found, *gradients)],
        "partial": [isinstance(t.placements[0], Partial) for t in gradients],
        "local": tuple(found[2].to_local().shape),
        "communication": (forward.get_total_counts(), backward.get_total_counts()),
        "values": [torch.equal(a.full_tensor(), b) for a, b in zip(found, expected, strict=True)],
        "dmixes": torch.allclose(gradients[0].full_tensor(), truth[0], rtol=1e-6, atol=1e-7),
        "sums": [
            float((a.full_tensor() - b).abs().max() / b.abs().max())
            for a, b in zip(gradients[1:], truth[1:], strict=True)
        ],
    }


def distributed_partials(mesh) -> dict:
    """The same of partial sums, sharded over tokens, and over splits, which are gathered."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    mixes, scale, base, *upstream = inputs(5, 4)
    partials, squares = torch.stack([mixes, mixes.sin()]), torch.stack([mixes[..., 0].exp()] * 2)

    def f(partials, squares, scale, base):
        return hc_split_sinkhorn(partials, scale, base, reduce=Reduce(squares, 64))

    leaves = [t.clone().requires_grad_() for t in (partials, squares, scale, base)]
    expected = f(*leaves)
    truth = torch.autograd.grad(expected, leaves, upstream)
    outcome = {}
    for name, placement, of_upstream in (("tokens", Shard(1), Shard(0)), ("splits", Shard(0), Replicate())):
        spread = [
            distribute_tensor(t, mesh, [p]).requires_grad_()
            for t, p in zip(leaves, (placement, placement, Replicate(), Replicate()), strict=True)
        ]
        with CommDebugMode() as forward:
            found = f(*spread)
        gradients = torch.autograd.grad(
            found, spread, [distribute_tensor(g, mesh, [of_upstream]) for g in upstream]
        )
        outcome[name] = {
            "placements": [str(t.placements[0]) for t in (*found, *gradients)],
            "communication": forward.get_total_counts(),
            "values": all(torch.equal(a.full_tensor(), b) for a, b in zip(found, expected, strict=True)),
            "gradients": all(
                torch.allclose(a.full_tensor(), b, rtol=1e-5, atol=1e-6 * float(b.abs().max()))
                for a, b in zip(gradients, truth, strict=True)
            ),
        }
    return outcome


def every_case(mesh) -> dict:
    outcomes = {
        (name, missing): distributed(mesh, name, missing) for name in CASES for missing in (False, True)
    }
    return outcomes | {"partials": distributed_partials(mesh)}


@pytest.fixture(scope="module")
def ranks(on_two_processes):
    """What each process found."""
    return on_two_processes(every_case)


@pytest.mark.parametrize("missing", [False, True], ids=["all used", "post unused"])
@pytest.mark.parametrize("case", CASES)
def test_distributed_equals_one_process(ranks, case, missing):
    for outcome in ranks:
        found = outcome[case, missing]
        assert found["values"] == [True] * 3
        assert found["dmixes"]
        assert max(found["sums"]) < 1e-6


@pytest.mark.parametrize("case", ["tokens", "second token dimension"])
def test_tokens_shard_and_sums_over_them_are_partial(ranks, case):
    for outcome in ranks:
        found = outcome[case, False]
        shard = {"tokens": "S(0)", "second token dimension": "S(1)"}[case]
        assert found["placements"][:4] == [shard] * 4
        assert found["partial"] == [False, True, True]
        assert found["communication"] == (0, 0)
    shapes = [outcome[case, False]["local"] for outcome in ranks]
    assert shapes == ([(3, 4, 4, 4), (2, 4, 4, 4)] if case == "tokens" else [(5, 2, 4, 4)] * 2)


def test_replicated_tensors_stay_replicated_and_columns_are_gathered(ranks):
    for outcome in ranks:
        assert outcome["replicated", False]["placements"] == ["R"] * 6
        assert outcome["replicated", False]["communication"] == (0, 0)
        assert outcome["columns", False]["communication"][0] > 0


def test_partial_sums_shard_over_tokens(ranks):
    for outcome in ranks:
        for name, found in outcome["partials"].items():
            assert found["values"], name
            assert found["gradients"], name
        tokens, splits = outcome["partials"]["tokens"], outcome["partials"]["splits"]
        assert tokens["placements"] == ["S(0)"] * 3 + ["S(1)"] * 2 + ["P(sum)"] * 2
        assert tokens["communication"] == 0
        assert splits["placements"][:3] == ["R"] * 3
        assert splits["communication"] > 0
