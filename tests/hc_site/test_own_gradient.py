"""dx of a site over the gradient that hc_post has made, where nobody else has that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from autograd_calls import assert_equal, randn
from forked import python
from hc_sites import site_inputs
from launches import kernels_on_cpu
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helion_sinkhorn import hc_boundary, hc_post, hc_site
from helion_sinkhorn.ops.mhc.post import torch_op as of_post
from helion_sinkhorn.ops.mhc.site import torch_op as of_site
from helion_sinkhorn.ops.mhc.site.boundary import torch_op as of_boundary
from helion_sinkhorn.ops.mhc.site.boundary.backward import launch, ways
from helion_sinkhorn.runtime import own_gradient


def test_in_a_process_of_its_own():
    """State of earlier tests in a process, such as modes, would make a site leave the gradient alone."""
    if "OWN_GRADIENT" in os.environ:
        pytest.skip("this is the process")
    command = "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__
    environment = {**os.environ, "OWN_GRADIENT": "1"}
    done = python(*command, env=environment, cwd=Path(__file__).parents[2], loaded=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


@pytest.fixture
def alone():
    if "OWN_GRADIENT" not in os.environ:
        pytest.skip("test_in_a_process_of_its_own runs it")


class Step:
    """A site and its update, and what its backward writes where."""

    def __init__(self, lead=(5,), dtype=torch.float32, implementation="auto"):
        given, _ = site_inputs(*lead, c=24, dtype=dtype)
        self.leaves = [t.clone().requires_grad_() for t in given]
        self.f = randn(*lead, 24, seed=30, dtype=dtype)
        self.upstream = randn(*given[0].shape, seed=31, dtype=dtype)
        self.results = hc_site(*self.leaves)
        self.held = []

    def update(self, residual=None):
        y, post, comb, own = self.results
        return hc_post(self.f + y, own if residual is None else residual, post, comb)

    def backward(self, out, upstream=None):
        return torch.autograd.grad(out, self.leaves, self.upstream if upstream is None else upstream)


@pytest.fixture
def made(alone, monkeypatch):
    """Addresses of the streams' gradients that hc_post made."""
    pytest.importorskip("triton", reason="the bodies import Triton")
    kernels_on_cpu(monkeypatch)
    addresses, run = [], of_post.apply_backward

    def noted(*arguments):
        gradients = run(*arguments)
        addresses.append(gradients[1].data_ptr())
        return gradients

    monkeypatch.setattr(of_post, "apply_backward", noted)
    return addresses


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("lead", [(5,), (2, 3)], ids=str)
def test_dx_is_written_over_it_and_has_the_same_bits(made, monkeypatch, lead, dtype):
    step = Step(lead, dtype)
    dx, *others = step.backward(step.update())
    assert [dx.data_ptr()] == made
    monkeypatch.setattr(own_gradient, "is_own", lambda gradient: False)
    again = Step(lead, dtype)
    expected = again.backward(again.update())
    assert expected[0].data_ptr() not in made
    assert_equal((dx, *others), expected)


def test_a_stack_of_sites(made):
    """Every site of a model writes over the gradient of its own update."""
    step = Step()
    x, *parameters = step.leaves
    streams = x
    for _ in range(3):
        y, post, comb, residual = hc_site(streams, *parameters)
        streams = hc_post(y.tanh(), residual, post, comb)
    (dx,) = torch.autograd.grad(streams, [x], step.upstream)
    assert len(made) == 3
    assert dx.data_ptr() == made[-1]


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
@pytest.mark.parametrize("one_pass", [False, True], ids=["parts", "one pass"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_boundaries_hand_one_gradient_on(made, monkeypatch, dtype, one_pass, norm):
    """In V4's order a boundary writes over the gradient that the next one made."""
    weight = 1 + randn(24, seed=8, scale=0.3) if norm else None

    def step():
        given, _ = site_inputs(5, c=24, dtype=dtype)
        x, *parameters = leaves = [t.clone().requires_grad_() for t in given]
        y, post, comb, streams = hc_site(x, *parameters)
        nodes = set()
        for _ in range(3):
            y, _, post, comb, streams = results = hc_boundary(
                y.tanh(), streams, post, comb, None, *parameters, y_norm_weight=weight
            )
            nodes |= {t.grad_fn for t in results}
        assert len(nodes) == 3
        return torch.autograd.grad(
            hc_post(y, streams, post, comb), leaves, randn(5, 4, 24, seed=9, dtype=dtype)
        )

    written_over, passes, run_pass = [], [], launch.gradients

    def noting(run):
        def noted(*arguments, **options):
            written_over.append(options)
            return run(*arguments, **options)

        return noted

    def noted_pass(tensors, pass_of, *rest):
        passes.append(pass_of.into is not None and pass_of.into.data_ptr() == tensors[0].data_ptr())
        return run_pass(tensors, pass_of, *rest)

    for operator in (of_boundary, of_site):
        monkeypatch.setattr(operator, "backward", noting(operator.backward))
    monkeypatch.setattr(launch, "gradients", noted_pass)
    monkeypatch.setattr(ways, "is_faster", lambda *_: one_pass)
    gradients = step()
    assert [list(options) for options in written_over] == [["over"]] * 3 + [["into"]]
    assert passes == [True] * 3 * one_pass
    monkeypatch.setattr(own_gradient, "is_own", lambda gradient: False)
    assert_equal(gradients, step())


def kept(keep):
    """A case in which somebody keeps the gradient of the streams."""

    def case(step):
        keep(step)
        return step.backward(step.update())

    return case


def kept_by_the_update(step):
    out = step.update()
    out.grad_fn.register_hook(lambda made, _: step.held.append(made))
    return step.backward(out)


def asked_for_as_well(step):
    gradients = torch.autograd.grad(step.update(), [step.results.residual, *step.leaves], step.upstream)
    step.held.append(gradients[0])
    return gradients[1:]


def retained(step):
    step.results.residual.retain_grad()
    out = step.backward(step.update())
    step.held += [t for t in [step.results.residual.grad] if t is not None]
    return out


def given_by_the_caller(step):
    step.held.append(step.upstream)
    y, *_, residual = step.results
    return torch.autograd.grad((y, residual), step.leaves, (step.f, step.upstream))


CASES = {
    "used twice": lambda step: step.backward(step.update() + 0.5 * step.results.residual),
    "updated twice": lambda step: step.backward(step.update() + step.update()),
    "a hook keeps it": kept(lambda step: step.results.residual.register_hook(step.held.append)),
    "a hook keeps its memory": kept(
        lambda step: step.results.residual.register_hook(lambda g: step.held.append(g.detach()))
    ),
    "a hook keeps a part": kept(
        lambda step: step.results.residual.register_hook(lambda g: step.held.append(g[1:]))
    ),
    "a hook of the node keeps its memory": kept(
        lambda step: step.results.residual.grad_fn.register_prehook(
            lambda made: step.held.extend(t.detach() for t in made if t is not None)
        )
    ),
    "a hook of the node keeps it": kept(
        lambda step: step.results.residual.grad_fn.register_prehook(step.held.append)
    ),
    "a hook of the update keeps it": kept_by_the_update,
    "asked for as well": asked_for_as_well,
    "retained": retained,
    "given by the caller": given_by_the_caller,
    "through a view": lambda step: step.backward(step.update(step.results.residual.view(5, 4, 24))),
    "through another function": lambda step: step.backward(step.update(step.results.residual.clone())),
}


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_that_somebody_else_may_have_is_left_alone(made, monkeypatch, name):
    """Its values are those that it had, and the results those without any writing over."""
    step = Step()
    gradients = CASES[name](step)
    monkeypatch.setattr(own_gradient, "is_own", lambda gradient: False)
    again = Step()
    expected = CASES[name](again)
    assert_equal(gradients, expected)
    assert len(step.held) == len(again.held)
    assert_equal(*([t for t in tree_leaves(of.held) if t is not None] for of in (step, again)))


class Keeping(TorchDispatchMode):
    """A mode that keeps what every operation makes."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.kept.append(function(*args, **(kwargs or {})))
        return self.kept[-1]


def test_a_mode_that_keeps_results_does_not_count_among_the_holders_of_none(alone):
    """One reference too many would let a site write over a gradient that a hook keeps."""
    expected = own_gradient._of_nobody_else()
    own_gradient._of_nobody_else.cache_clear()
    with Keeping():
        assert own_gradient._of_nobody_else() == expected


def test_retain_graph_gives_the_same_twice(made):
    step = Step()
    out = step.update()
    first = torch.autograd.grad(out, step.leaves, step.upstream, retain_graph=True)
    first = [t.clone() for t in first]
    assert_equal(first, torch.autograd.grad(out, step.leaves, step.upstream))


@pytest.mark.gpu
@pytest.mark.parametrize(("norm", "most"), [(False, 1.05), (True, 1.45)])
def test_peak_of_a_sites_backward(alone, norm, most):
    """At most this times dx, df and the parameters' gradients, of 8192 tokens of 4 x 4096.

    After a norm dy is float32, as large as two of the five streams that dx and df take.
    """
    tokens, n, c = 8192, 4, 4096

    def leaf(*shape, dtype=torch.float32, scale=1.0):
        return (scale * torch.randn(shape, device="cuda")).to(dtype).requires_grad_()

    x, f = leaf(tokens, n, c, dtype=torch.bfloat16), leaf(tokens, c, dtype=torch.bfloat16)
    parameters = leaf(24, n * c, scale=0.02), leaf(3), leaf(24)
    weight = leaf(c) if norm else None
    upstream = torch.randn_like(x), torch.randn_like(f)
    leaves = [x, f, *parameters, *([weight] if norm else [])]
    for _ in range(2):
        y, post, comb, residual = hc_site(x, *parameters, y_norm_weight=weight)
        results = hc_post(f, residual, post, comb), y
        del y, post, comb, residual
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        made = torch.autograd.grad(results, leaves, upstream)
        ratio = (torch.cuda.max_memory_allocated() - before) / sum(t.nbytes for t in made)
        del made, results
    assert ratio <= most
