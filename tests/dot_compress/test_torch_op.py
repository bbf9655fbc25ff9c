"""The torch operators of dot compress: autograd, compilers, functorch, autocast and checkpointing."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_batched_gradients, assert_equal, dynamic_frames, randn
from dot_compress_problem import inputs, results
from targets import INDUCTOR_BY_NIGHT
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from helion_sinkhorn import dot_compress, reference

FORWARD = torch.ops.helion_sinkhorn.dot_compress.default
BACKWARD = torch.ops.helion_sinkhorn.dot_compress_backward.default


LAYOUTS = {
    "transposed": lambda t: t.mT.contiguous().mT,
    "one element": lambda t: t[0],
    "leading": lambda t: t.view(2, 2, *t.shape[1:]),
    "strided": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "empty": lambda t: t[:0],
}


def test_sizes_beyond_the_kernels_are_compiled_once():
    calls = [inputs(2, 12 + k, 6 + k, 130 + 9 * k, False)[:2] for k in range(3)]
    assert dynamic_frames(dot_compress, calls) == 1


@pytest.mark.parametrize("lead", [(4,), (2, 2)], ids=str)
def test_the_result_may_be_changed_in_place(lead):
    x, y, _, grad = (t if t is None else t.view(*lead, *t.shape[1:]) for t in inputs(4, 12, 6, 5, False))
    x.requires_grad_()
    (expected,) = torch.autograd.grad(dot_compress(x, y), x, 2 * grad)
    (found,) = torch.autograd.grad(dot_compress(x, y).mul_(2), x, grad)
    assert torch.equal(found, expected)


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


@INDUCTOR_BY_NIGHT
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
