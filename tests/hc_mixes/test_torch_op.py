"""The torch operators of hc_mixes: autograd, compilers, functorch, autocast, DTensor."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_batched_gradients, assert_equal, randn
from targets import INDUCTOR_BY_NIGHT
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from helion_sinkhorn import hc_mixes, reference

FORWARD = torch.ops.helion_sinkhorn.hc_mixes.default
BACKWARD = torch.ops.helion_sinkhorn.hc_mixes_backward.default
CONSTANTS = 1e-6, False, "float32", "pytorch"
OTHERS = 0.1, True, "tf32", "pytorch"


def inputs(*lead, n=4, c=6, m=24, seed=0, dtype=torch.float32):
    """(x, fn, dmixes)."""
    rest = torch.float64 if dtype == torch.float64 else torch.float32
    return (
        randn(*lead, n, c, seed=seed, dtype=dtype),
        randn(m, n * c, seed=seed + 1, dtype=rest, scale=0.2),
        randn(*lead, m, seed=seed + 2, dtype=rest),
    )


def results(x, fn, dmixes, f=hc_mixes):
    """mixes, dx and dfn."""
    leaves = [t.detach().requires_grad_() for t in (x, fn)]
    mixes = f(*leaves)
    return mixes.detach(), *torch.autograd.grad(mixes, leaves, dmixes)


def assert_close(found, expected, rtol=1e-5, atol=1e-5):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


LAYOUTS = {
    "contiguous": lambda t: t,
    "streams last": lambda t: t.mT.contiguous().mT,
    "merged": lambda t: t.flatten(-2),
    "one token": lambda t: t[0, 0],
    "strided": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda t: t[:1].expand_as(t),
    "empty": lambda t: t[:, :0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck(layout):
    constants, dtype = (OTHERS, torch.bfloat16) if layout == "one token" else (CONSTANTS, torch.float32)
    x, fn, _ = inputs(2, 5, dtype=dtype)
    x = LAYOUTS[layout](x)
    torch.library.opcheck(FORWARD, (*[t.detach().requires_grad_() for t in (x, fn)], *constants))
    mixes, norms = FORWARD(x, fn, *constants)
    torch.library.opcheck(BACKWARD, (randn(*mixes.shape), x, fn, mixes, norms, *constants[2:]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_fakes_have_the_metadata_of_what_runs(layout, dtype):
    x, fn, _ = inputs(2, 5, dtype=dtype)
    x, fn = LAYOUTS[layout](x), fn.bfloat16()

    def both(x, fn):
        mixes, norms = FORWARD(x, fn, *CONSTANTS)
        return mixes, norms, *BACKWARD(torch.ones_like(mixes), x, fn, mixes, norms, *CONSTANTS[2:])

    found = both(x, fn)
    with FakeTensorMode() as mode:
        fake = both(*[mode.from_tensor(t) for t in (x, fn)])
    for a, b in zip(found, fake, strict=True):
        assert (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)


def test_meta_device():
    x, fn, dmixes = (t.to("meta") for t in inputs(2, 5, dtype=torch.bfloat16))
    found = results(x, fn.bfloat16(), dmixes)
    assert [tuple(t.shape) for t in found] == [(2, 5, 24), (2, 5, 4, 6), (24, 24)]
    assert {t.device.type for t in found} == {"meta"}
    assert [t.dtype for t in found] == [torch.float32, torch.bfloat16, torch.bfloat16]


@pytest.mark.parametrize("eps_outside", [False, True])
def test_the_operators_are_what_the_function_runs(eps_outside):
    x, fn, dmixes = inputs(3, 7)
    mixes, norms = FORWARD(x, fn, 0.1, eps_outside, "float32", "pytorch")
    found = mixes, *BACKWARD(dmixes, x, fn, mixes, norms, "float32", "pytorch")
    assert_equal(found, results(x, fn, dmixes, lambda *t: hc_mixes(*t, 0.1, eps_outside=eps_outside)))


@pytest.mark.parametrize("eps_outside", [False, True])
def test_norms_are_what_their_names_say(eps_outside):
    """r makes mixes of products; k <dmixes, mixes> x is what dx has of the norm's gradient."""
    x, fn, dmixes = inputs(3, 7, dtype=torch.float64)
    mixes, norms = FORWARD(x, fn, 0.1, eps_outside, "float32", "pytorch")
    flat = x.flatten(-2).requires_grad_()
    products, q = flat @ fn.mT, flat.square().mean(-1, keepdim=True)
    r = 1 / (q.sqrt() + 0.1) if eps_outside else 1 / (q + 0.1).sqrt()
    torch.testing.assert_close(norms[..., :1], r)
    torch.testing.assert_close(mixes, r * products)
    (of_norm,) = torch.autograd.grad((r * products.detach()), flat, dmixes)
    along = (dmixes * mixes).sum(-1, keepdim=True)
    torch.testing.assert_close(norms[..., 1:] * along * flat, of_norm)


def test_norms_carry_no_gradient():
    x, fn, _ = inputs(3)
    mixes, norms = FORWARD(x.requires_grad_(), fn.requires_grad_(), *CONSTANTS)
    assert mixes.requires_grad
    assert not norms.requires_grad


def test_compiled_and_at_any_number_of_tokens():
    torch._dynamo.reset()
    compiled = torch.compile(hc_mixes, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (3, 5, 8):
        given = inputs(2, tokens, seed=tokens)
        assert_equal(results(*given, f=compiled), results(*given))
    with torch.no_grad():
        assert torch.equal(compiled(*given[:2]), hc_mixes(*given[:2]))


def test_compiled_without_recompiling_for_other_tokens():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(hc_mixes, fullgraph=True, backend=counter)
    for tokens in (3, 5, 8, 13):
        x, fn, dmixes = inputs(tokens, seed=tokens)
        torch._dynamo.mark_dynamic(x, 0)
        leaves = [t.requires_grad_() for t in (x, fn)]
        mixes = compiled(*leaves)
        assert_equal([mixes.detach(), *torch.autograd.grad(mixes, leaves, dmixes)], results(x, fn, dmixes))
    assert counter.frame_count == 1


def weighted(x, fn, weight):
    """A call with every argument, between other operations."""
    return hc_mixes(x * 2, fn, 0.1, weight, precision="tf32", eps_outside=True).sin()


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=INDUCTOR_BY_NIGHT)])
def test_compiled_with_a_norm_weight(backend):
    torch._dynamo.reset()
    x, fn, dmixes = inputs(6)
    both = []
    for f in (weighted, torch.compile(weighted, fullgraph=True, backend=backend)):
        leaves = [t.detach().requires_grad_() for t in (x, fn, 1 + randn(24, seed=9))]
        y = f(*leaves)
        both.append((y.detach(), *torch.autograd.grad(y, leaves, dmixes)))
    assert_close(*both)


class Site(torch.nn.Module):
    """A site of a model: its projection."""

    def __init__(self):
        super().__init__()
        self.fn = torch.nn.Parameter(inputs()[1])

    def forward(self, x):
        return hc_mixes(x, self.fn, 1e-6)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_program_runs_at_other_token_counts(strict):
    tokens, site = torch.export.Dim("tokens", min=2), Site()
    program = torch.export.export(site, (inputs(2, 3)[0],), dynamic_shapes=({1: tokens},), strict=strict)
    assert sum(node.target is FORWARD for node in program.graph.nodes) == 1
    for count in (2, 7):
        x = inputs(2, count, seed=count)[0]
        assert torch.equal(program.module()(x), site(x))


@pytest.mark.parametrize("dims", [(0, None), (1, None), (-1, None), (0, 0), (2, 1), (None, 0)], ids=str)
def test_vmap(dims):
    each = [inputs(2, 5, seed=k)[:2] for k in range(3)]
    stacked = []
    for k, d in enumerate(dims):
        stacked.append(each[0][k] if d is None else torch.stack([one[k] for one in each], d))
    found = torch.vmap(hc_mixes, in_dims=dims)(*stacked)
    expected = [hc_mixes(*(each[0][k] if d is None else one[k] for k, d in enumerate(dims))) for one in each]
    assert torch.equal(found, torch.stack(expected))


def test_vmap_over_tokens_of_merged_streams():
    x, fn, _ = inputs(5)
    assert torch.equal(torch.vmap(lambda t: hc_mixes(t, fn))(x.flatten(-2)), hc_mixes(x, fn))


def test_vmap_of_nothing():
    x, fn, _ = inputs(0, 5)
    assert torch.vmap(hc_mixes, (0, None))(x, fn).shape == (0, 5, 24)
    assert torch.vmap(hc_mixes)(x, fn.expand(0, 24, 24)).shape == (0, 5, 24)


@pytest.mark.parametrize("of_fn", [False, True], ids=["shared fn", "fn of each"])
@pytest.mark.parametrize("how", ["grad", "vjp"])
def test_gradients_of_each_sample(how, of_fn):
    """dfn of each sample is of its tokens alone, also where fn is shared."""
    each = [inputs(5, seed=k) for k in range(3)]
    x, fn, dmixes = [torch.stack(parts) for parts in zip(*each, strict=True)]
    if not of_fn:
        fn = each[0][1]

    def gradient(x, fn, dmixes):
        if how == "grad":
            return torch.func.grad(lambda *t: (hc_mixes(*t) * dmixes).sum(), argnums=(0, 1))(x, fn)
        return torch.func.vjp(hc_mixes, x, fn)[1](dmixes)

    found = torch.vmap(gradient, in_dims=(0, 0 if of_fn else None, 0))(x, fn, dmixes)
    expected = [results(x, w if of_fn else fn, g)[1:] for x, w, g in each]
    assert_equal(found, [torch.stack(parts) for parts in zip(*expected, strict=True)])
    assert (found[1][0] - found[1][1]).abs().max() > 1e-2


def test_gradient_of_a_vmapped_call():
    """Outside of the map the gradient of a shared fn is a sum over it."""
    given = inputs(3, 5)
    mapped = results(*given, f=lambda x, fn: torch.vmap(hc_mixes, (0, None))(x, fn))
    assert_equal(mapped[:2], results(*given)[:2])
    torch.testing.assert_close(mapped[2], results(*given)[2])


def test_batched_gradients_and_jacobian():
    x, fn, _ = inputs(2)
    assert_batched_gradients(hc_mixes, x, fn)
    one = [t.double() for t in (x[0], fn)]
    jacobian = torch.func.jacrev(hc_mixes, argnums=(0, 1))(*one)
    expected = torch.func.jacrev(reference.hc_mixes, argnums=(0, 1))(*one)
    assert_close(jacobian, expected, 1e-12, 1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_changes_no_bit(dtype):
    given = inputs(3, 5, dtype=dtype)
    weight = 1 + 0.2 * randn(24, seed=8)

    def with_weight(x, fn):
        return hc_mixes(x, fn, 1e-6, weight)

    plain, of_weight = results(*given), results(*given, f=with_weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (randn(2, 2) @ randn(2, 2)).dtype == torch.bfloat16
        assert_equal(results(*given), plain)
        assert_equal(results(*given, f=with_weight), of_weight)
        torch._dynamo.reset()
        compiled = torch.compile(hc_mixes, fullgraph=True, backend="aot_eager")
        assert_equal(results(*given, f=compiled), plain)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint(use_reentrant):
    given = inputs(3, 5)
    leaves = [t.clone().requires_grad_() for t in given[:2]]
    mixes = checkpoint(hc_mixes, *leaves, use_reentrant=use_reentrant)
    mixes.backward(given[2])
    assert_equal((mixes.detach(), *(t.grad for t in leaves)), results(*given))


def test_what_is_kept_is_the_arguments_and_a_row_for_each_token():
    """No float32 copy of the streams: x and fn themselves, mixes (96 bytes a token) and the norms (8)."""
    x, fn, _ = (t.requires_grad_() for t in inputs(3, 5, dtype=torch.bfloat16))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        mixes = hc_mixes(x, fn)
    assert {t.data_ptr() for t in kept} >= {t.data_ptr() for t in (x, fn, mixes)}
    assert sorted(t.numel() * t.element_size() for t in kept) == sorted(
        (x.nbytes, fn.nbytes, 15 * 24 * 4, 15 * 2 * 4)
    )


def test_second_derivatives_and_forward_mode_say_what_to_do():
    x, fn, dmixes = inputs(2)
    x.requires_grad_()
    (dx,) = torch.autograd.grad(hc_mixes(x, fn), x, dmixes, create_graph=True)
    with pytest.raises(
        NotImplementedError, match=r"no second derivative.*helion_sinkhorn\.reference\.hc_mixes"
    ):
        dx.sum().backward()
    x = x.detach()
    for f, t in ((lambda t: hc_mixes(t, fn), x), (lambda t: hc_mixes(x, t), fn)):
        with pytest.raises(NotImplementedError, match=r"no forward-mode derivative.*reference\.hc_mixes"):
            torch.func.jvp(f, (t,), (t,))


def test_the_specification_has_second_derivatives():
    x, fn, _ = inputs(2, n=2, c=2, m=3, dtype=torch.float64)
    for eps_outside in (False, True):
        torch.autograd.gradgradcheck(
            lambda x, fn, o=eps_outside: reference.hc_mixes(x, fn, 0.1, eps_outside=o),
            (x.requires_grad_(), fn.requires_grad_()),
        )


# --- DTensor ---------------------------------------------------------------------------------------------

CASES = {
    "tokens": "Shard(0)",
    "second token dimension": "Shard(1)",
    "replicated": "Replicate()",
    "streams": "Shard(2)",
    "columns": "Shard(3)",
}
"""Placement of x and, but for streams and columns, of the upstream gradient."""


def distributed(mesh, name: str, merged: bool) -> dict:
    """Results and gradients on distributed tensors against those of one process."""
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    placement = eval(CASES[name], {"Shard": Shard, "Replicate": Replicate})
    of_upstream = Replicate() if name in ("streams", "columns") else placement
    # 5 tokens do not divide by two
    x, fn, dmixes = inputs(5, 4)
    x = x.flatten(-2) if merged else x
    truth = results(x, fn, dmixes)
    spread = [
        distribute_tensor(t, mesh, [p]).requires_grad_()
        for t, p in zip((x, fn), (placement, Replicate()), strict=True)
    ]
    with CommDebugMode() as forward:
        found = hc_mixes(*spread)
    given = distribute_tensor(dmixes, mesh, [of_upstream])
    with CommDebugMode() as backward:
        dx, dfn = torch.autograd.grad(found, spread, given)
    return {
        "placements": [str(t.placements[0]) for t in (found, dx)],
        "partial": isinstance(dfn.placements[0], Partial),
        "local": tuple(found.to_local().shape),
        "communication": (forward.get_total_counts(), backward.get_total_counts()),
        "equal": [torch.equal(a.full_tensor(), b) for a, b in zip((found, dx), truth, strict=False)],
        "dfn": float((dfn.full_tensor() - truth[2]).abs().max() / truth[2].abs().max()),
    }


def every_case(mesh) -> dict:
    merged = {name: (False, True) if name != "columns" else (False,) for name in CASES}
    return {(name, one): distributed(mesh, name, one) for name in CASES for one in merged[name]}


@pytest.fixture(scope="module")
def ranks(on_two_processes):
    """What each process found."""
    return on_two_processes(every_case)


def test_distributed_equals_one_process(ranks):
    for outcome in ranks:
        for case, found in outcome.items():
            assert found["equal"] == [True, True], case
            assert found["dfn"] < 1e-6, case


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("case", ["tokens", "second token dimension"])
def test_tokens_shard_and_the_sum_over_them_is_partial(ranks, case, merged):
    for outcome in ranks:
        found = outcome[case, merged]
        shard = {"tokens": "S(0)", "second token dimension": "S(1)"}[case]
        assert found["placements"] == [shard] * 2
        assert found["partial"]
        assert found["communication"] == (0, 0)
    shapes = [outcome[case, merged]["local"] for outcome in ranks]
    assert shapes == ([(3, 4, 24), (2, 4, 24)] if case == "tokens" else [(5, 2, 24)] * 2)


def test_replicated_tensors_stay_replicated_and_columns_are_gathered(ranks):
    for outcome in ranks:
        assert outcome["replicated", False]["placements"] == ["R"] * 2
        assert outcome["replicated", False]["communication"] == (0, 0)
        assert not outcome["replicated", False]["partial"]
        for case in (("streams", False), ("streams", True), ("columns", False)):
            assert outcome[case]["communication"][0] > 0
