"""Views of matrices and of kept scaling vectors: what each thread reads, and in which order of axes."""

from __future__ import annotations

import pytest
import torch
from launches import launching_as

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.ops.sinkhorn import launch, views
from helion_sinkhorn.ops.sinkhorn.implicit import launch as implicit_launch
from helion_sinkhorn.ops.sinkhorn.launch import KERNELS
from helion_sinkhorn.ops.sinkhorn.views import kept_views, spread_over_threads
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.dispatch import signature


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("n", "m", "thread"),
    [
        (32, 32, (8, 8)), (64, 64, (8, 8)), (64, 64, (16, 4)), (16, 16, (8, 4)), (16, 16, (2, 16)),
        (16, 16, (16, 2)), (32, 8, (8, 8)), (8, 32, (8, 8)), (2, 8, (1, 4)),
    ],
)  # fmt: skip
def test_threads_read_their_own_lines(n, m, thread, dtype):
    x = spread_over_threads(torch.zeros(1, n, m, dtype=dtype), *thread)
    # the entries of a thread, by their number in the matrix
    held = torch.arange(n * m).as_strided(x.shape[1:], x.stride()[1:])
    for axis, lines in ((1, held // m), (2, held % m)):
        written, read = kept_views(torch.full((3, 2, (n, m)[axis - 1]), -1), axis, x, m, False)
        written[2, 1] = torch.arange((n, m)[axis - 1]).reshape(written.shape[2:])
        numbers = read[2, 1].movedim(4, 2)
        if axis == 1:
            assert torch.equal(numbers.flatten(0, 2)[:, None, :, :, None].expand_as(lines), lines)
        else:
            numbers = numbers.flatten(1, 2).movedim(1, 3)
            assert torch.equal(numbers[None].expand_as(lines), lines)
        assert (read[2, 0] == -1).all()
        assert (read[:2] == -1).all()
        _, moved = kept_views(torch.zeros(3, 2, (n, m)[axis - 1]), axis, x, m, True)
        assert moved.shape == (2, read.size(5), read.size(4), 3, *read.shape[2:4], read.size(6))


def test_a_matrix_of_one_thread_and_unknown_threads_read_the_scratch():
    scratch = torch.zeros(2, 3, 8)
    for x in (torch.zeros(1, 8, 8), spread_over_threads(torch.zeros(1, 8, 8), 8, 8)):
        assert all(view is scratch for view in kept_views(scratch, 1, x, 8, True))


@pytest.fixture
def triton_3_6(monkeypatch):
    monkeypatch.setattr(views, "triton_version", lambda: (3, 6))
    launch.constants.cache_clear()
    yield
    launch.constants.cache_clear()


def with_thread(call, name, thread, **variant):
    kernels = KERNELS | implicit_launch.KERNELS
    choice = door.choose(kernels[name], call, 5, DEVICES["h200"])
    return launch.with_variant(choice, thread=thread, **variant)


def both_orders(request, run):
    """What `run` returns with the axes of views in the order of Triton 3.7 and later, and of 3.6."""
    plain = run()
    request.getfixturevalue("triton_3_6")
    return plain, run()


@pytest.mark.parametrize(("form", "n_iters"), [("deepseek", 20), ("log", 20), ("deepseek", 1)])
@pytest.mark.parametrize(
    ("n", "m", "thread", "ordered"),
    [(16, 16, (8, 4), False), (32, 8, (8, 8), True), (8, 32, (8, 4), True)],
)
def test_threads_in_front_change_no_bit(request, n, m, thread, form, n_iters, ordered):
    """The same numbers are loaded, whatever the order of the axes."""
    x, dy = torch.randn(2, 5, n, m, generator=torch.Generator().manual_seed(1))
    arguments = n_iters, 1e-6, form, "rows"
    call = launch.call_of(x, *arguments)
    forward = with_thread(call, "sinkhorn_forward", thread, ordered=ordered)
    backward = [
        with_thread(call, "sinkhorn_backward", thread, ordered=False, length=min(5, max(call.steps, 1))),
        with_thread(call, "sinkhorn_backward_history", thread, ordered=ordered),
    ]

    def run():
        return launch.lanes_first(call, forward), [
            launch.forward(x, *arguments, x.dtype, forward),
            *(launch.backward(dy, x, *arguments, choice) for choice in backward),
        ]

    (before, plain), (after, moved) = both_orders(request, run)
    assert (before, after) == (False, True)
    assert all(map(torch.equal, plain, moved))


def test_threads_in_front_change_no_bit_of_an_implicit_gradient(request):
    p = torch.randn(5, 16, 16, generator=torch.Generator().manual_seed(1)).softmax(-1)
    dy = torch.randn(5, 16, 16, generator=torch.Generator().manual_seed(2))
    choice = with_thread(implicit_launch.implicit_call(16, 16, p.dtype, 20), "sinkhorn_implicit_cg", (8, 8))
    plain, moved = both_orders(
        request,
        lambda: implicit_launch.implicit_backward(dy, p, 20, "corrected", "cg", p.dtype, choice),
    )
    assert torch.equal(plain, moved)


@pytest.mark.usefixtures("triton_3_6")
@pytest.mark.parametrize("version", [(3, 6), (3, 9)])
def test_one_program_serves_every_batch(version, monkeypatch):
    """A history whose size followed the batch was generated anew for each power of two of it under 3.6."""
    monkeypatch.setattr(views, "triton_version", lambda: version)
    launched = []
    launching_as(monkeypatch, run=lambda kernel, *arguments: launched.append(signature(arguments)))
    for batch in (3, 40, 700):
        x = torch.zeros(batch, 16, 16)
        call = launch.call_of(x, 20, 1e-6, "log", "rows")
        choice = with_thread(call, "sinkhorn_backward_history", (8, 8), ordered=True)
        launch.backward(x, x, 20, 1e-6, "log", "rows", choice)
    assert len(launched) == 3
    assert launched.count(launched[0]) == 3
