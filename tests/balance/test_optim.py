"""SinkhornBalanced and SinkGD: their steps in float64 by loops, state, groups, and what they refuse."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from autograd_calls import assert_equal, randn
from launches import kernels_on_cpu

from helion_sinkhorn import reference
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.ops.balance.passes import Average
from helion_sinkhorn.optim import BUFFER, SinkGD, SinkhornBalanced

NONE = Average(0.0, False)

SHAPES = (30, 8), (30, 8), (12, 20), (2, 9, 5)


def weights(dtype=torch.float64, shapes=SHAPES):
    return [randn(*shape, seed=k, dtype=dtype).requires_grad_() for k, shape in enumerate(shapes)]


def gradient(k, step, p):
    """Rows of many sizes, some zero or small."""
    g = randn(*p.shape, seed=100 * step + k, dtype=p.dtype) * torch.logspace(-1, 1, p.size(-1), dtype=p.dtype)
    g[..., 1 + step, :] = 0.0
    g[..., 4, :] *= 1e-6
    return g


def train(optimizer, params, steps=3, first=0):
    for step in range(first, first + steps):
        for k, p in enumerate(params):
            p.grad = gradient(k, step, p)
        optimizer.step()
        for k, p in enumerate(params):
            assert torch.equal(p.grad, gradient(k, step, p))
    return params


def by_definition(params, lr, momentum, nesterov, steps=3):
    """The weights that SinkhornBalanced is to make, one after another."""
    stepped = []
    for k, p in enumerate(params):
        w, average = p.detach(), torch.zeros_like(p)
        for step in range(steps):
            terms = (1.0 - momentum) * gradient(k, step, p)
            average = momentum * average + terms
            w = w - lr * reference.sinkhorn_balance(momentum * average + terms if nesterov else average)
        stepped.append(w)
    return stepped


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.95, True), (0.8, False), (0.0, True)])
def test_sinkhorn_balanced_is_the_algorithm(momentum, nesterov, foreach):
    params = weights()
    expected = by_definition(params, 0.1 * 0.18, momentum, nesterov)
    train(SinkhornBalanced(params, 0.1, momentum, nesterov=nesterov, foreach=foreach), params)
    for p, w in zip(params, expected, strict=True):
        torch.testing.assert_close(p.detach(), w, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("values", ["normal", "peaked"])
def test_a_step_as_large_as_the_weight_is_rounded_once(values, dtype):
    """What is subtracted is not rounded before."""
    gradient, p = BalanceWorkload("", 2, frozenset(), "", 20, 41, dtype, values, average=NONE).make_inputs()
    step = reference.sinkhorn_balance(gradient.double(), steps=10, zero_row_threshold=0.0, scale="none")
    exact = p.double() - math.sqrt(p.size(1)) * step
    p.requires_grad_().grad = gradient
    SinkGD([p], 1.0).step()
    error, least = ((t.detach().double() - exact).square().mean().sqrt() for t in (p, exact.to(dtype)))
    assert error <= 1.2 * least


@pytest.mark.parametrize("path", ["eager", "kernels"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_nesterov_s_step_is_of_the_average_before_that_is_rounded(dtype, path, monkeypatch):
    """A step with an average has the bits of a step without one whose gradient is u."""
    if path == "kernels":
        pytest.importorskip("triton", reason="the bodies import Triton")
        kernels_on_cpu(monkeypatch)
    (p,), (other,) = weights(dtype, SHAPES[:1]), weights(dtype, SHAPES[:1])
    g, average = gradient(0, 0, p), randn(*p.shape, seed=1, dtype=dtype)
    terms = 0.05 * g.float()
    mean = 0.95 * average.float() + terms
    u, of_rounded = ((0.95 * a.float() + terms).to(dtype) for a in (mean, mean.to(dtype)))
    optimizer = SinkhornBalanced([p], 0.1)
    optimizer.state[p][BUFFER] = average
    p.grad, other.grad = g, u
    optimizer.step()
    SinkhornBalanced([other], 0.1, momentum=0.0).step()
    assert not torch.equal(u, of_rounded)
    assert_equal([average, p], [mean.to(dtype), other])


@pytest.mark.parametrize(("kind", "count"), [(SinkGD, 0), (SinkhornBalanced, 1)])
def test_a_step_of_one_parameter_allocates_nothing_of_its_size_but_what_is_balanced(kind, count):
    """Neither the gradient nor the weight is copied."""
    (p,) = params = weights(torch.float32, [(2000, 600)])
    optimizer = kind(params, 0.1)
    p.grad = torch.ones_like(p)
    optimizer.step()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as seen:
        optimizer.step()
    # temporary tensors have pieces of at most 2^18 entries
    allocations = "aten::empty", "aten::empty_strided"
    made = [e.cpu_memory_usage for e in seen.events() if e.name in allocations]
    assert sum(size >= p.nbytes for size in made) == count


def test_sinkgd_is_the_algorithm():
    (p,) = params = weights(shapes=[(30, 8)])
    expected = p.detach().clone()
    for step in range(2):
        u = gradient(0, step, p)
        for k in range(10):
            root = u.square().mean(-1 - k % 2, keepdim=True).sqrt()
            u = u / torch.where(root == 0, 1.0, root)
        expected -= 0.1 * u
    optimizer = SinkGD(params, 0.1)
    train(optimizer, params, 2)
    torch.testing.assert_close(p.detach(), expected, rtol=1e-12, atol=1e-13)
    assert not optimizer.state


def test_tensors_of_one_shape_together_are_each_alone():
    together, alone = weights(torch.float32), weights(torch.float32)
    train(SinkhornBalanced(together), together)
    train(SinkhornBalanced(alone, foreach=False), alone)
    assert_equal(together, alone)


def test_parameters_of_a_class_of_their_own_step_together():
    """With DTensor imported, only one of a shape was expected of what might be one."""
    import torch.distributed.tensor

    kind = type("Own", (torch.nn.Parameter,), {})
    own, plain = ([make(randn(9, 12, seed=k)) for k in range(2)] for make in (kind, torch.nn.Parameter))
    train(SinkGD(own), own)
    train(SinkGD(plain), plain)
    assert_equal([p.detach().as_subclass(torch.Tensor) for p in own], [p.detach() for p in plain])


def test_a_state_dict_goes_on():
    params, others = weights(torch.float32), weights(torch.float32)
    optimizer = SinkhornBalanced(params, 0.1)
    train(optimizer, params, 2)
    with torch.no_grad():
        for p, other in zip(params, others, strict=True):
            other.copy_(p)
    resumed = SinkhornBalanced(others, 0.5, 0.1)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert_equal(train(resumed, others, 2, first=2), train(optimizer, params, 2, first=2))
    assert {*optimizer.state[params[0]]} == {BUFFER}


def test_groups_have_their_own_options():
    params, apart = weights(), weights()
    train(
        SinkhornBalanced([{"params": params[:1], "lr": 0.5}, {"params": params[1:], "steps": 3}], 0.1), params
    )
    train(SinkhornBalanced(apart[:1], 0.5), apart[:1])
    rest = SinkhornBalanced(apart[1:], 0.1, steps=3)
    for step in range(3):
        for k, p in enumerate(apart[1:], 1):
            p.grad = gradient(k, step, p)
        rest.step()
    assert_equal(params, apart)


def test_a_parameter_without_a_gradient_stays():
    params = weights()
    before = params[1].detach().clone()
    params[0].grad = gradient(0, 0, params[0])
    SinkhornBalanced(params).step()
    assert torch.equal(params[1], before)
    assert not torch.equal(params[0], weights()[0])


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
@pytest.mark.parametrize("kind", [SinkhornBalanced, SinkGD])
def test_lr_as_a_tensor_is_read_in_each_step(kind, shape):
    params, others = weights(), weights()
    lr = torch.full(shape, 0.1, dtype=torch.float64)
    optimizer, other = kind(params, lr), kind(others, 0.1)
    train(optimizer, params, 1)
    train(other, others, 1)
    lr.fill_(0.3)
    other.param_groups[0]["lr"] = 0.3
    for p, w in zip(train(optimizer, params, 1, 1), train(other, others, 1, 1), strict=True):
        torch.testing.assert_close(p, w)


def test_schedulers_and_closures():
    (p,) = params = weights(shapes=[(6, 4)])
    optimizer = SinkhornBalanced(params, 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def closure():
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    losses = []
    for _ in range(3):
        losses.append(optimizer.step(closure).item())
        scheduler.step()
    assert losses[0] > losses[1] > losses[2]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 8)


def test_narrow_and_strided_parameters():
    wide = randn(8, 30).bfloat16().mT.requires_grad_()
    wide.grad = gradient(0, 0, wide)
    before = wide.detach().clone()
    SinkGD([wide], 0.1).step()
    step = (before.float() - wide.float()) / 0.1
    assert step.square().mean(-2).sub(1).abs().max() < 0.1
    assert not step[1].any()


def test_gradients_of_another_dtype():
    (p,), (other,) = weights(torch.float32, SHAPES[:1]), weights(torch.float32, SHAPES[:1])
    if not hasattr(p, "grad_dtype"):
        pytest.skip("this torch has gradients of the dtype of their parameter")
    p.grad_dtype = None
    p.grad = gradient(0, 0, p).bfloat16()
    other.grad = p.grad.float()
    for w in (p, other):
        SinkhornBalanced([w], 0.1).step()
    assert torch.equal(p, other)


@pytest.mark.parametrize("kind", [SinkhornBalanced, SinkGD])
@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (0, 3, 4), (2, 0, 4), (0, 0)], ids=str)
def test_parameters_without_an_entry(kind, shape):
    params = weights(shapes=[shape, shape, SHAPES[0]])
    other = weights(shapes=[shape, shape, SHAPES[0]])[2]
    for p in params:
        p.grad = torch.ones_like(p).cumsum(0)
    other.grad = params[2].grad
    kind(params, 0.1).step()
    kind([other], 0.1).step()
    assert torch.equal(params[2], other)


F64 = [torch.zeros(3, 4)]
REFUSED = {
    "a vector": ({"params": [torch.zeros(3)]}, ValueError, r"has shape \(3,\); Sinkhorn.* takes matrices"),
    "complex": ({"params": [F64[0].cfloat()]}, TypeError, "a parameter has dtype torch.complex64; accepted"),
    "integers": ({"params": [F64[0].long()]}, TypeError, "a parameter has dtype torch.int64; accepted are"),
    "lr": ({"lr": -0.1}, ValueError, "lr is -0.1; pass a finite float of at least 0"),
    "lr that is no number": ({"lr": math.nan}, ValueError, "lr is nan; pass a finite float"),
    "lr in a tensor": ({"lr": torch.tensor(-1.0)}, ValueError, "lr is -1.0; pass a finite float"),
    "NaN in a tensor": ({"lr": torch.tensor([math.nan])}, ValueError, "lr is nan; pass a finite float"),
    "lr of two": ({"lr": torch.ones(2)}, ValueError, r"lr has shape \(2,\)"),
    "lr of a string": ({"lr": "0.1"}, TypeError, "lr is '0.1'; pass a finite float of at least 0"),
    "lr_correction": ({"lr_correction": math.nan}, ValueError, "lr_correction is nan; pass a finite float"),
    "a string": ({"lr_correction": "x"}, TypeError, "lr_correction is 'x'; pass a finite float"),
    "momentum": ({"momentum": 1.0}, ValueError, "momentum is 1.0; pass a float from 0 to below 1"),
    "no momentum": ({"momentum": None}, TypeError, "momentum is None; pass a float from 0 to below 1"),
    "steps": ({"steps": 0}, ValueError, "steps is 0"),
}


@pytest.mark.parametrize(("given", "error", "said"), REFUSED.values(), ids=REFUSED)
def test_refused_with_what_to_do(given, error, said):
    """By the constructor, and by add_param_group, which then leaves everything as it was."""
    with pytest.raises(error, match=said):
        SinkhornBalanced(**{"params": F64, **given})
    params, others = weights(), weights()
    optimizer = SinkhornBalanced(params)
    with pytest.raises(error, match=said):
        optimizer.add_param_group({"params": F64, **given})
    assert len(optimizer.param_groups) == 1
    assert_equal(train(optimizer, params), train(SinkhornBalanced(others), others))
    # what was refused for its options may be given again
    optimizer.add_param_group({"params": [F64[0].clone()]})


def test_sinkgd_refuses_alike():
    for arguments, options, said in (((-0.1,), {}, "lr is -0.1"), ((), {"iterations": 0}, "steps is 0")):
        with pytest.raises(ValueError, match=said):
            SinkGD(F64, *arguments, **options)


def test_sparse_gradients_are_refused_before_anything_moves():
    (p,), embedding = weights(shapes=SHAPES[:1]), torch.nn.Embedding(5, 3, sparse=True)
    optimizer = SinkhornBalanced([{"params": [p]}, {"params": [*embedding.parameters()]}])
    embedding(torch.tensor([1, 2])).sum().backward()
    p.grad, before = torch.ones_like(p), p.detach().clone()
    with pytest.raises(ValueError, match="a gradient is sparse"):
        optimizer.step()
    assert torch.equal(p, before)
    assert not optimizer.state


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, SinkGD])
def test_a_state_dict_of_another_optimizer_is_refused(kind):
    params, others, alone = weights(), weights(), weights()
    optimizer, other = SinkhornBalanced(params), kind(others, lr=0.5)
    train(other, others, 1)
    for p in params:
        p.grad = None
    with pytest.raises(ValueError, match=r"the state dict has a group without .*; load one that Sinkhorn"):
        optimizer.load_state_dict(other.state_dict())
    assert_equal(train(optimizer, params), train(SinkhornBalanced(alone), alone))


def test_copies_and_state_dicts_that_are_loaded_twice():
    params = weights()
    optimizer = SinkhornBalanced(params)
    # a state dict from before the first step has no average, which begins at zero
    for _ in range(2):
        optimizer.load_state_dict(optimizer.state_dict())
    copied = copy.deepcopy(optimizer)
    assert_equal(train(copied, copied.param_groups[0]["params"]), train(optimizer, params))


@pytest.mark.parametrize("average", [Average(0.95, True), NONE], ids=str)
def test_opcheck(average):
    """Also of a weight that is not contiguous, into which a copy is written back."""
    gradient, weight, *averages = (randn(2, 41, 20, seed=k) for k in range(3 if average.momentum else 2))
    for w in (weight, weight.mT.contiguous().mT):
        given = [w], [gradient], averages, torch.ones(1), *average, 11, 1e-3, 1e-20, [], "pytorch"
        torch.library.opcheck(torch.ops.helion_sinkhorn.sinkhorn_balance_step.default, given)


@pytest.mark.parametrize("kind", [SinkhornBalanced, SinkGD])
def test_a_compiled_step(kind):
    params, others = weights(torch.float32), weights(torch.float32)
    optimizer, other = kind(params, torch.tensor(0.1)), kind(others, torch.tensor(0.1))
    step = torch.compile(optimizer.step, backend="aot_eager")
    for k, (p, w) in enumerate(zip(params, others, strict=True)):
        p.grad, w.grad = gradient(k, 0, p), gradient(k, 0, w)
    for _ in range(2):
        step()
        other.step()
    assert_equal(params, others)
