"""The bodies of hc_split_sinkhorn, run eagerly by Helion's reference mode, against float64."""

from __future__ import annotations

import functools

import pytest
import torch
from launches import launching_as

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.split.workloads import ROWS
from helion_sinkhorn.ops.mhc.split import launch
from helion_sinkhorn.ops.mhc.split.options import CoefficientGradients, SplitOptions
from helion_sinkhorn.ops.mhc.split.partials import Reduce
from helion_sinkhorn.ops.mhc.split.space import HcCall
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.kernel import Choice, candidates, default_choice

WORKLOADS = [w for w in ROWS if "ci" in w.tags]


def first_element(workload):
    mixes, scale, base, *gradients = workload.make_inputs()
    return *(t[:1] for t in (mixes, *gradients)), scale[None], base[None]


@pytest.mark.parametrize("name", launch.KERNELS)
@pytest.mark.parametrize("key", ["h200", "mi350"])
def test_configs_of_a_call_add_up_in_one_order(name, key):
    """A token alone and a batch may have different ones: threads hold the same of a matrix in all."""
    for n in (2, 3, 4, 8, 16):
        choices = candidates(KERNELS[name], HcCall("float32", n, 20, True), DEVICES[key])
        # the length of a segment decides what is computed twice, and not the order of a sum
        (variant,) = {tuple(v for v in choice.variant if v[0] != "length") for choice in choices}
        rows, columns = dict(variant)["thread"]
        assert len(choices) > 1 if rows else len(choices) == 1
        for choice in choices:
            config = dict(choice.config)
            threads = config["num_warps"] * DEVICES[key].warp_size
            assert not rows or config["block_sizes"][0] * n * n == threads * rows * columns


def test_without_a_gradient_nothing_is_launched(monkeypatch):
    """Helion refuses a kernel that writes nothing: a boundary whose coefficients nothing used raised."""
    mixes, *_, scale, base = first_element(WORKLOADS[0])
    launching_as(monkeypatch, run=lambda *arguments: pytest.fail("a launch"))
    nothing = CoefficientGradients(None, None, None)
    dmixes, sums = launch.backward(nothing, mixes, scale[0], base[0], WORKLOADS[0].arguments)
    assert torch.equal(dmixes, torch.zeros_like(mixes))
    assert torch.equal(sums, torch.zeros(mixes.size(-1) + 3))


def test_sums_have_a_row_for_each_tile_of_the_choice_that_serves(monkeypatch):
    """Also where a stored choice is refused and the default takes its place, and in the launches after it."""
    workload, rows = WORKLOADS[0], []
    mixes, *gradients, scale, base = (t[0] for t in first_element(workload))
    call = launch.call_for(workload.n, workload.n_iters, workload.eps, workload.dtype)
    default = default_choice(KERNELS[launch.BACKWARD], call, DEVICES["h200"])
    config = tuple({**dict(default.config), "block_sizes": (64,)}.items())
    stored = Choice(default.kernel, config, default.variant, "a stored one", True)

    def refuse_the_first(kernel, views, own, tensors, key):
        sums, of_logits, of_scale = views[10:]
        rows.append(len(sums))
        if len(rows) == 1:
            raise RuntimeError("out of resource")
        for t in (sums, of_logits, of_scale):
            t.fill_(1.0)

    launching_as(monkeypatch, device_at=lambda index: (DEVICES["h200"], "division", False))
    monkeypatch.setattr(door, "choose", lambda *a: default if rows else stored)
    monkeypatch.setattr(door.choose, "cache_clear", lambda: None, raising=False)
    monkeypatch.setattr(launch, "run_and_keep", refuse_the_first)
    for _ in range(2):
        upstream = CoefficientGradients(*gradients)
        _, sums = launch.backward(upstream, mixes, scale, base, workload.arguments)
        assert sums.shape == (27,)
        assert (sums == 9).all()
    assert rows == [5, 9, 9]
    assert workload.tokens == 257


@pytest.mark.parametrize("name", ["forward", "forward_reduced", "backward"])
def test_kept_launches_take_the_addresses_of_the_views(monkeypatch, name):
    """They are given parts of tensors without views of them, in the order of the kernel's arguments."""
    n, tokens, splits = 4, 7, 3
    shapes = (tokens, n), (tokens, n), (tokens, n, n), (tokens, 24), (splits, tokens, 24), (splits, tokens)
    dpre, dpost, dcomb, mixes, partials, squares = (torch.rand(s) for s in shapes)
    parameters = torch.rand(3), torch.rand(24), SplitOptions(n, 2, 1e-6, 2.0, 1e-6, 0.0, "io")
    given = {
        "forward": (mixes, *parameters, torch.float32),
        "forward_reduced": (partials, Reduce(squares, 64), *parameters, torch.float32),
        "backward": (CoefficientGradients(dpre, dpost, dcomb), mixes, *parameters),
    }[name]
    first, second = [], []

    def addresses(tensors):
        return [None if t is None else t.data_ptr() for t in tensors]

    def noted(kernel, views, own, tensors, key):
        assert addresses(views) == addresses(tensors)
        first.append(key)

    def kept(key, *tensors):
        second.append((key, len(tensors)))
        return bool(first)

    for module in (launch, door):
        monkeypatch.setattr(module, "run_and_keep", noted)
        monkeypatch.setattr(module, "launch_kept", kept)
    getattr(launch, name)(*given)
    getattr(launch, name)(*given)
    assert len(first) == 1
    assert second[-1] == (first[0], 13 if name == "backward" else 12)


@pytest.mark.parametrize("eps_outside", [False, True])
@pytest.mark.parametrize(("n", "splits"), [(4, 1), (4, 6), (4, 8), (4, 11), (3, 5), (2, 4), (8, 2), (16, 3)])
def test_what_a_reduction_leaves_for_the_backward(n, splits, eps_outside):
    """mixes and norms of float64, and as bits the sum in the order of the splits times r."""
    partials = torch.randn(splits, 2, 9, n * n + 2 * n) * 10.0 ** torch.arange(splits).view(-1, 1, 1, 1)
    squares, size, norm_eps = 50 * torch.rand(splits, 2, 9), 100, 1e-2
    squares[:, 1, 4] = 0.0
    scale, base = torch.rand(3), torch.rand(n * n + 2 * n)
    given = scale, base, SplitOptions(n, 3, 1e-6, 2.0, 1e-6, 0.0, "io"), torch.float32
    reduce = Reduce(squares, size, norm_eps, eps_outside)
    *values, mixes, norms = launch.forward_reduced(partials, reduce, *given)
    total = functools.reduce(torch.add, partials)
    assert torch.equal(mixes, norms[..., :1] * total)
    assert splits <= 2 or not torch.equal(total, functools.reduce(torch.add, partials.flip(0)))
    q = squares.double().sum(0) / size
    r = 1 / (q.sqrt() + norm_eps) if eps_outside else 1 / (q + norm_eps).sqrt()
    k = torch.where(q > 0, -r / (size * q.sqrt()), 0.0) if eps_outside else -r.square() / size
    torch.testing.assert_close(norms.double(), torch.stack([r, k], -1), rtol=1e-6, atol=0.0)
    assert all(t.isfinite().all() for t in (*values, mixes, norms))
    again = launch.forward(mixes, *given)
    assert all(torch.equal(a, b) for a, b in zip(values, again, strict=True))
    partials, squares = (t.movedim(0, 2).contiguous().movedim(2, 0) for t in (partials, squares))
    again = launch.forward_reduced(partials, reduce._replace(squares=squares), *given)
    assert all(torch.equal(a, b) for a, b in zip((*values, mixes, norms), again, strict=True))


def test_partial_sums_are_read_where_they_lie(monkeypatch):
    """With the splits or the tokens first; a copy only of other layouts, and of layouts that differ."""
    partials, squares = torch.rand(3, 5, 24), torch.rand(3, 5)
    parameters = torch.rand(3), torch.rand(24), SplitOptions(4, 2, 1e-6, 2.0, 1e-6, 0.0, "io"), torch.float32
    read = []

    def noted(kernel, views, own, tensors, key):
        read.append((views[0].data_ptr(), views[8].data_ptr()))

    monkeypatch.setattr(door, "run_and_keep", noted)
    moved = [t.movedim(0, 1).contiguous().movedim(1, 0) for t in (partials, squares)]
    for given in ((partials, squares), moved):
        launch.forward_reduced(given[0], Reduce(given[1], 64), *parameters)
        assert read.pop() == tuple(t.data_ptr() for t in given)
    launch.forward_reduced(moved[0], Reduce(squares, 64), *parameters)
    assert read[0][0] != moved[0].data_ptr()
    assert read[0][1] == squares.data_ptr()
