"""dot_compress on a CPU: values, gradients, and what autograd, compilers and functorch see of it."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_batched_gradients, assert_equal, randn
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from helion_sinkhorn import dot_compress, reference
from helion_sinkhorn.ops.dot_compress import budget as testing_dot_compress
from helion_sinkhorn.testing.rounding import worst

FORWARD = torch.ops.helion_sinkhorn.dot_compress.default
BACKWARD = torch.ops.helion_sinkhorn.dot_compress_backward.default
NARROW = (torch.bfloat16, torch.float16)


def inputs(batch, m, d, k, has_z=True, dtype=torch.float32, seed=0):
    """x, y, z or None, upstream gradient."""
    shapes = (batch, m, d), (batch, m, k), (batch, d, k), (batch, m, k)
    x, y, z, grad = (randn(*shape, seed=seed + i, dtype=dtype) for i, shape in enumerate(shapes))
    return x, y, z if has_z else None, grad


def results(x, y, z, grad, f=dot_compress, **options):
    """{"out", "dx", "dy" and with z "dz"}."""
    leaves = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, y)]
    leaves += [] if z is None else [z.detach().clone().requires_grad_()]
    out = f(*leaves, **options)
    gradients = torch.autograd.grad(out, leaves, grad)
    return dict(zip(("out", "dx", "dy", "dz"), (out.detach(), *gradients), strict=False))


def worst_errors(found, x, y, z, grad, parts=1):
    """The largest error of each result in units of its budget."""
    truth = testing_dot_compress.exact(x, y, z, grad, parts)
    return {name: worst(t, truth[name].value, truth[name].budget) for name, t in found.items()}


@pytest.mark.parametrize("has_z", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, *NARROW])
@pytest.mark.parametrize(
    "shape", [(2, 37, 20, 5), (1, 300, 64, 16), (3, 1, 7, 1), (2, 129, 256, 64)], ids=str
)
def test_value_and_gradients_within_the_budget(shape, dtype, has_z):
    given = inputs(*shape, has_z, dtype)
    found = results(*given)
    assert len(found) == 3 + has_z
    assert max(worst_errors(found, *given).values()) <= 1


@pytest.mark.parametrize("has_z", [False, True])
def test_float64_is_the_specification(has_z):
    given = inputs(2, 37, 20, 5, has_z, torch.float64)
    found, expected = results(*given), results(*given, f=reference.dot_compress)
    for name, t in found.items():
        torch.testing.assert_close(t, expected[name], rtol=1e-13, atol=1e-11)


def test_gradients_by_finite_differences():
    x, y, z, _ = inputs(2, 4, 3, 2, dtype=torch.float64)
    torch.autograd.gradcheck(dot_compress, [t.requires_grad_() for t in (x, y, z)])


@pytest.mark.parametrize("dtype", NARROW)
def test_precise_intermediate_leaves_only_the_last_rounding(dtype):
    given = inputs(2, 600, 64, 16, dtype=dtype)
    plain, precise = (results(*given, precise_intermediate=p) for p in (False, True))
    truth = testing_dot_compress.exact(*given, parts=2)
    assert max(worst_errors(precise, *given, parts=2).values()) <= 1
    for name in ("out", "dx", "dy"):
        errors = [(r[name].double() - truth[name].value).square().mean().sqrt() for r in (plain, precise)]
        last = truth[name].last.square().mean().sqrt()
        assert errors[1] < 1.02 * last < errors[0]


def test_precise_intermediate_changes_nothing_of_float32():
    given = inputs(2, 37, 20, 5)
    assert_equal(results(*given).values(), results(*given, precise_intermediate=True).values())


@settings(max_examples=30)
@given(
    st.integers(0, 3), st.integers(0, 40), st.integers(1, 20), st.integers(1, 20),
    st.booleans(), st.booleans(), st.sampled_from((torch.float32, torch.bfloat16)), st.integers(0, 9),
)  # fmt: skip
def test_any_shape(batch, m, d, k, has_z, precise, dtype, seed):
    given = inputs(batch, m, d, k, has_z, dtype, seed)
    found = results(*given, precise_intermediate=precise)
    parts = 2 if precise and dtype == torch.bfloat16 else 1
    assert max(worst_errors(found, *given, parts=parts).values()) <= 1


@settings(max_examples=20)
@given(st.integers(-6, 6), st.integers(-6, 6), st.integers(0, 99))
def test_powers_of_two_scale_through(i, j, seed):
    """out is of degree two in x and one in y: scaling by powers of two changes no bit but the exponent."""
    x, y, z, grad = inputs(2, 33, 16, 8, dtype=torch.bfloat16, seed=seed)
    a, b = 2.0**i, 2.0**j
    plain, scaled = results(x, y, z, grad), results(a * x, b * y, a * b * z, grad)
    assert torch.equal(scaled["out"], a * a * b * plain["out"])
    assert torch.equal(scaled["dx"], a * b * plain["dx"])
    assert torch.equal(scaled["dy"], a * a * plain["dy"])
    assert torch.equal(scaled["dz"], a * plain["dz"])


def test_the_batch_around_an_element_changes_no_bit_of_it():
    given = inputs(9, 70, 32, 16, dtype=torch.bfloat16)
    whole = results(*given)
    for part in (slice(0, 1), slice(2, 5), slice(8, 9), slice(0, 9, 2)):
        assert_equal(results(*[t[part] for t in given]).values(), [t[part] for t in whole.values()])


LAYOUTS = {
    "transposed": lambda t: t.mT.contiguous().mT,
    "one element": lambda t: t[0],
    "leading": lambda t: t.view(2, 2, *t.shape[1:]),
    "strided": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "empty": lambda t: t[:0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("has_z", [False, True])
def test_layouts_and_opcheck(layout, has_z):
    given = [None if t is None else LAYOUTS[layout](t) for t in inputs(4, 12, 6, 5, has_z)]
    contiguous = [None if t is None else t.contiguous() for t in given]
    assert_equal(results(*given).values(), results(*contiguous).values())
    x, y, z, grad = given
    for parts in (1, 2):
        torch.library.opcheck(FORWARD, (x, y, z, parts, "pytorch"))
        leaves = [None if t is None else t.detach().requires_grad_() for t in (x, y, z)]
        torch.library.opcheck(FORWARD, (*leaves, parts, "pytorch"))
        _, b = FORWARD(x, y, z, parts, "pytorch")
        torch.library.opcheck(BACKWARD, (grad, x, y, b, "pytorch"))


def test_no_rows_leave_z_and_no_gradient():
    x, y, z, grad = inputs(2, 0, 6, 5)
    found = results(x, y, z, grad)
    assert found["out"].shape == (2, 0, 5)
    assert not found["dz"].any()
    assert torch.equal(FORWARD(x, y, z, 1, "pytorch")[1][:, 0], z)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)], ids=str)
def test_gradients_of_some_arguments(wanted):
    *tensors, grad = inputs(2, 12, 6, 5)
    leaves = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(tensors)]
    found = torch.autograd.grad(dot_compress(*leaves), [leaves[i] for i in wanted], grad)
    every = [*results(*tensors, grad).values()][1:]
    assert_equal(found, [every[i] for i in wanted])


@pytest.mark.parametrize("has_z", [False, True])
def test_compiled_and_at_any_batch(has_z):
    torch._dynamo.reset()
    compiled = torch.compile(dot_compress, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch in (3, 5, 8):
        given = inputs(batch, 12, 6, 5, has_z)
        assert_equal(results(*given, f=compiled).values(), results(*given).values())


def test_compiled_by_inductor():
    given = inputs(3, 12, 6, 5)

    def f(x, y, z):
        return dot_compress(x * 2, y, z).sin()

    found, expected = results(*given, f=torch.compile(f, fullgraph=True)), results(*given, f=f)
    for name, t in found.items():
        torch.testing.assert_close(t, expected[name], rtol=1e-5, atol=1e-4)


class Layer(torch.nn.Module):
    def forward(self, x, y, z):
        return dot_compress(x, y, z)


def test_exported_program_runs_at_other_batch_sizes():
    batch = torch.export.Dim("batch", min=2)
    x, y, z, _ = inputs(3, 12, 6, 5)
    program = torch.export.export(Layer(), (x, y, z), dynamic_shapes=({0: batch},) * 3, strict=True)
    assert sum(node.target is FORWARD for node in program.graph.nodes) == 1
    for size in (2, 7):
        given = inputs(size, 12, 6, 5, seed=size)
        assert_equal(results(*given, f=program.module()).values(), results(*given).values())


@pytest.mark.parametrize("dims", [(0, 0, 0), (1, 1, 1), (0, 0, None), (None, 0, 0)], ids=str)
def test_vmap(dims):
    tensors = inputs(4, 12, 6, 5)[:3]
    moved = [t[0] if d is None else t.movedim(0, d) for t, d in zip(tensors, dims, strict=True)]
    expanded = [t[:1].expand_as(t) if d is None else t for t, d in zip(tensors, dims, strict=True)]
    assert torch.equal(torch.vmap(dot_compress, in_dims=dims)(*moved), dot_compress(*expanded))


def test_batched_gradients():
    assert_batched_gradients(dot_compress, randn(2, 6, 4), randn(2, 6, 3, seed=1), randn(2, 4, 3, seed=2))


def test_vmap_of_grad_and_jacobian():
    x, y, z, grad = inputs(3, 5, 4, 2)

    def gradient(x, y, z, grad):
        return torch.func.grad(lambda *t: (dot_compress(*t) * grad).sum(), argnums=(0, 1, 2))(x, y, z)

    assert_equal(torch.vmap(gradient)(x, y, z, grad), [*results(x, y, z, grad).values()][1:])
    jacobian = torch.func.jacrev(dot_compress)(x[0], y[0], z[0])
    expected = torch.func.jacrev(reference.dot_compress)(x[0].double(), y[0].double(), z[0].double())
    torch.testing.assert_close(jacobian.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_changes_no_bit(dtype):
    given = inputs(3, 12, 6, 5, dtype=dtype)
    plain = results(*given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (randn(2, 2) @ randn(2, 2)).dtype == torch.bfloat16
        assert_equal(results(*given).values(), plain.values())


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint(use_reentrant):
    given = inputs(3, 12, 6, 5)

    def f(*tensors):
        return checkpoint(dot_compress, *tensors, use_reentrant=use_reentrant)

    x, y, z, grad = given
    leaves = [t.clone().requires_grad_() for t in (x, y, z)]
    out = f(*leaves)
    out.backward(grad)
    assert_equal((out, *(t.grad for t in leaves)), results(*given).values())


def test_fakes_have_the_metadata_of_what_runs():
    given = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in inputs(3, 12, 6, 5)]
    found = results(*given)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = results(*[torch.empty_strided(t.shape, t.stride()) for t in given])
    for name, t in fake.items():
        assert (t.shape, t.stride(), t.dtype) == (found[name].shape, found[name].stride(), found[name].dtype)


def test_second_derivatives_and_forward_mode_say_what_to_do():
    x, y, z, grad = inputs(2, 5, 4, 2)
    x.requires_grad_()
    (dx,) = torch.autograd.grad(dot_compress(x, y, z), x, grad, create_graph=True)
    with pytest.raises(
        NotImplementedError, match=r"no second derivative.*helion_sinkhorn\.reference\.dot_compress"
    ):
        dx.sum().backward()
    with pytest.raises(NotImplementedError, match=r"no forward-mode derivative.*reference\.dot_compress"):
        torch.func.jvp(lambda t: dot_compress(t, y, z), (x.detach(),), (x.detach(),))


F32 = torch.zeros(2, 3, 4)
REFUSED = {
    "x is a list": (([1.0], F32), {}, TypeError, "x is a list; pass a torch.Tensor"),
    "x is int64": ((F32.long(), F32), {}, TypeError, "x has dtype torch.int64; accepted are torch.float32"),
    "dtypes differ": ((F32, F32.bfloat16()), {}, TypeError, "y has dtype torch.bfloat16, x torch.float32"),
    "sparse": ((F32.to_sparse(), F32), {}, TypeError, r"x has layout .*to_dense"),
    "a vector": ((F32[0, 0], F32), {}, ValueError, "x has shape .*two dimensions"),
    "no columns": ((F32[..., :0], F32), {}, ValueError, "at least one column"),
    "other rows": ((F32, F32[:, :2]), {}, ValueError, r"y has shape \(2, 2, 4\).*same M"),
    "other batch": ((F32, F32[:1]), {}, ValueError, "leading dimensions"),
    "z transposed": ((F32, F32[..., :2], torch.zeros(2, 2, 4)), {}, ValueError, r"D, K\), \(2, 4, 2\)"),
    "meta": ((F32, F32.to("meta")), {}, ValueError, "y is on meta, x on cpu"),
    "precise": ((F32, F32), {"precise_intermediate": 1}, TypeError, "pass True or False"),
    "implementation": ((F32, F32), {"implementation": "cuda"}, ValueError, "use one of 'auto'"),
    "helion on a CPU": ((F32, F32), {"implementation": "helion"}, NotImplementedError, "x is on cpu; use"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_what_to_do(case):
    arguments, options, kind, said = REFUSED[case]
    with pytest.raises(kind, match=said):
        dot_compress(*arguments, **options)
