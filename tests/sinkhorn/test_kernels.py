"""The Helion kernel bodies, run eagerly by Helion's reference mode, and the path of a CPU, against float64.

Reference mode runs the whole batch as one tile: it tests the equations as written in the
bodies; tiles, masks and types are tested by triton_interpreter/ and on a device.
"""

from __future__ import annotations

import itertools
import types

import pytest
import torch
from autograd_calls import randn, value_and_gradient
from forked import python
from launches import launching_as
from reference_mode import each_device, of_each_variant
from sinkhorn_case import Case
from sinkhorn_kernels import BACKWARD, BACKWARDS, FORWARD, HISTORY, assert_within, call_of, check, choice
from steep import STEEP_CALLS, check_gradient

from helion_sinkhorn import reference
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.sinkhorn.logits import LOGITS
from helion_sinkhorn.ops.sinkhorn import eager, launch, line_sums, views
from helion_sinkhorn.ops.sinkhorn.implicit import eager as implicit
from helion_sinkhorn.ops.sinkhorn.iteration import raised
from helion_sinkhorn.ops.sinkhorn.scaling import SHIFT, segment_length, shifted_length
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.kernel import Choice, build, candidates, default_choice, in_space
from helion_sinkhorn.runtime.launch import Chosen, device_of

FORMS = ["deepseek", "log"]
FIRSTS = ["rows", "cols"]
WAYS = [("deepseek", "rows"), ("log", "cols")]
"""Each form and each order once; FEW has every pair of them."""
SIZES = [
    *((n, n) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 33)), (1, 7), (3, 5), (4, 8), (7, 2), (16, 4)
]  # fmt: skip
KINDS = [
    Case(logits, n, m, 20, *way, batch=16)
    for logits in LOGITS
    for n, m, way in ((4, 4, WAYS[0]), (3, 5, WAYS[1]))
]
FEW = [
    Case(logits, 4, 4, n_iters, form, first)
    for logits in ("randn_8", "identity_like")
    for n_iters in (1, 2, 3)
    for form in FORMS
    for first in FIRSTS
]
NARROW = [
    Case("randn_3", n, m, 20, form, batch=64, dtype=dtype)
    for n, m, form in ((4, 4, "deepseek"), (3, 5, "log"))
    for dtype in (torch.bfloat16, torch.float16)
]
CALLS = [
    *KINDS,
    *(Case("randn_3", n, m, 6, *way) for n, m in SIZES for way in WAYS),
    *FEW,
    *(Case("randn_8", 4, 4, 20, eps=eps, batch=16) for eps in (1e-12, 1e-3, 0.5)),
    *NARROW,
]
RESTARTED = [("randn_30", 4, 4), ("identity_like", 4, 4), ("masked", 1, 7), ("randn_30", 7, 2)]
OF_HISTORY = [
    *(Case("randn_3", n, m, 3, form, batch=1) for n, m, form in
      ((64, 64, "log"), (128, 3, "deepseek"), (128, 128, "log"))),
    # several restarts, and one iteration more than a segment
    *(Case(*of, 100, *way) for of in RESTARTED for way in WAYS),
    *(Case("randn_8", 4, 4, length(4, 4) + extra, "log", batch=16)
      for length in (segment_length, shifted_length) for extra in (0, 1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "backwards"), [*((c, BACKWARDS) for c in CALLS), *((c, (HISTORY,)) for c in OF_HISTORY)], ids=str
)
def test_values_and_gradients(case, backwards):
    """By a CPU and by kernels, with results of the dtype of the logits, which are rounded once, and wide."""
    assert case.n_iters < 100 or segment_length(case.n, case.m) < 50
    x, dy = case.inputs()
    dx = eager.backward(dy, x, *case.arguments)
    for dtype in {torch.float32, case.dtype}:
        for forward in (eager.forward, launch.forward):
            ratios = case.judge(forward(x, *case.arguments, dtype), dx)
            assert max(ratios.values()) <= 1, ratios
    check(case, *backwards)


def test_a_raised_power_keeps_its_digits_and_small_ones():
    exponent = torch.linspace(-185, 0, 1001)
    true = torch.exp2(exponent.double() + 2 * SHIFT)
    assert (raised(exponent, SHIFT) / true - 1).abs().max() < 3e-7


@pytest.mark.parametrize("first", FIRSTS)
@pytest.mark.parametrize(("n", "m", "n_iters"), [(8, 8, 26), (16, 16, 20), (3, 16, 22)])
@pytest.mark.parametrize("logits", ["randn_30", "one_up_100", "column_below", "masked"])
def test_the_shifted_form(logits, n, m, n_iters, first):
    case = Case(logits, n, m, n_iters, "log", first, batch=16)
    assert launch.shift(call_of(case)) == SHIFT
    check(case, FORWARD, *BACKWARDS)


@pytest.mark.parametrize("logits", ["masked", "identity_like"])
@pytest.mark.parametrize(
    ("n", "m", "n_iters", "form", "first"),
    [
        # few enough iterations for pairs of reciprocals to stay in range
        (4, 4, 5, "deepseek", "rows"), (2, 8, 5, "log", "cols"), (8, 8, 5, "deepseek", "cols"),
        # with a restart of the log form, and without one of the deepseek form
        (4, 4, 20, "deepseek", "rows"), (4, 4, 20, "log", "cols"), (8, 8, 20, "log", "rows"),
        (16, 16, 20, "log", "cols"), (8, 4, 20, "deepseek", "cols"), (64, 64, 3, "log", "rows"),
        (4, 4, 1, "log", "rows"), (4, 4, 3, "deepseek", "cols"), (3, 5, 7, "log", "rows"),
        (2, 8, 5, "deepseek", "cols"),
        # no step at all
        (4, 4, 1, "deepseek", "rows"), (7, 7, 1, "deepseek", "rows"),
    ],
)  # fmt: skip
def test_every_variant_that_is_tried(n, m, n_iters, form, first, logits):
    """Threads of a matrix, pairs of reciprocals, pivots, sums in order, u computed again, and segments."""
    case = Case(logits, n, m, n_iters, form, first, batch=8)
    call = call_of(case)
    for name in (FORWARD, *BACKWARDS):
        for tried in of_each_variant(candidates(KERNELS[name], call, DEVICES["h200"])):
            assert_within(case, tried)
            # reference mode adds up alike, and would not notice a variant that is ignored
            if name == FORWARD and dict(tried.variant).get("ordered"):
                plain = launch.with_variant(tried, ordered=False)
                assert len({launch.constants(call, case.eps, c, "full") for c in (tried, plain)}) == 2


@pytest.mark.parametrize("dtypes", list(itertools.product([torch.float32, torch.bfloat16], repeat=2)))
@pytest.mark.parametrize("n", [4, 8])
def test_columns_of_logits_and_gradients_are_numbered_alike(n, dtypes):
    """Whatever the two dtypes are; sums over renumbered columns differ in their last bits."""
    case = Case("randn_3", n, n, 20, batch=8)
    x, dy = (t.to(dtype) for t, dtype in zip(case.inputs(), dtypes, strict=True))
    tree, ordered = (
        choice(case, BACKWARD, thread=(n, n), ordered=ordered, length=7) for ordered in (False, True)
    )
    expected = launch.backward(dy.float(), x.float(), *case.arguments, tree)
    dx = launch.backward(dy, x, *case.arguments, ordered)
    torch.testing.assert_close(dx, expected.to(x.dtype))


@pytest.mark.parametrize(("form", "first"), WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_in_order_load_a_row_at_most(dtype, form, first):
    """Loads of 4 entries of either size hold what loads of 16 bytes do; reference mode sums both alike."""
    case = Case("randn_3", 4, 4, 20, form, first, batch=8)
    x, dy = (t.to(dtype) for t in case.inputs())
    results = []
    for ordered in (False, True):
        selected = choice(case, BACKWARD, thread=(4, 4), ordered=ordered)
        assert views.loaded(x, selected).shape[-1] == (4 if ordered else 16 // x.element_size())
        results.append(launch.backward(dy, x, *case.arguments, selected))
    assert torch.equal(*results)


@pytest.mark.parametrize("length", [1, 3, 7, 20])
@pytest.mark.parametrize("logits", ["randn_8", "identity_like_16", "one_up_20", "masked"])
@pytest.mark.parametrize(
    ("n", "m", "first", "n_iters", "restarts"),
    [
        (8, 8, "rows", 20, False),
        (5, 7, "cols", 20, False),
        (4, 16, "rows", 24, True),
        (16, 4, "cols", 24, True),
    ],
)
def test_gradients_in_registers_are_shifted_or_pass_a_restart(n, m, first, n_iters, restarts, logits, length):
    case = Case(logits, n, m, n_iters, "log", first)
    call = call_of(case)
    assert (launch.segment(call) < call.steps) == restarts != bool(launch.shift(call))
    assert launch.backward_kernel(call) == "sinkhorn_backward"
    check(case, BACKWARD, length=length)


@each_device
@pytest.mark.parametrize(("kind", "n", "n_iters"), STEEP_CALLS)
def test_gradients_of_steep_logits_pass_restarts(kind, n, n_iters, device):
    """By a CPU, by the kernel that a call of this size gets, and by the one with its vectors in memory."""
    call = SinkhornCall(False, 1, "float32", n, n, n_iters)
    assert segment_length(n, n) < n_iters
    check_gradient(lambda dy, x: eager.backward(dy, x, n_iters, 0.0, "log", "rows"), kind, n, n_iters)
    for name in dict.fromkeys((launch.backward_kernel(call), "sinkhorn_backward_history")):
        served = door.choose(KERNELS[name], call, 64, device_of(torch.empty(0, device=device)))
        check_gradient(
            lambda dy, x, served=served: launch.backward(dy, x, n_iters, 0.0, "log", "rows", served),
            kind, n, n_iters, device,
        )  # fmt: skip


@pytest.mark.parametrize("wanted", [1, 4, 5, 7, 16, 20])
def test_segments_hold_all_iterations_between_restarts(wanted):
    for steps in range(1, 25):
        call = SinkhornCall(False, 1, "float32", 4, 16, steps)
        length, head, tail = launch.segments(call, wanted)
        rest = steps - (head + tail) * length
        assert 1 <= rest <= length, steps
        assert (tail > 0) == (steps > launch.segment(call)), steps
        assert max(head * length + rest, tail * length) <= launch.segment(call), steps
    assert tail > 0


@pytest.mark.parametrize("logits", ["randn_30", "masked", "permutation"])
@pytest.mark.parametrize(("n", "m", "first"), [(4, 4, "rows"), (2, 8, "cols"), (8, 8, "rows")])
@pytest.mark.parametrize("eps", [1e-6, 2.0**-30])
def test_a_pivot_changes_rounding_only(eps, n, m, first, logits):
    case = Case(logits, n, m, 20, "deepseek", first, eps=eps)
    call = call_of(case)
    how = choice(case, FORWARD, pivoted=True)
    assert launch.constants(call, eps, how, "full")[-1] is True
    check(case, FORWARD, BACKWARD, thread=(n, m), pivoted=True)


@pytest.mark.parametrize(
    ("n_iters", "eps", "form"), [(1, 1e-6, "deepseek"), (20, 1e-10, "deepseek"), (20, 0.0, "log")]
)
def test_no_pivot_where_it_could_leave_the_range(n_iters, eps, form):
    case = Case("randn_8", 4, 4, n_iters, form, eps=eps)
    call = call_of(case)
    how = choice(case, FORWARD, pivoted=True)
    assert launch.constants(call, eps, how, "full")[-1] is False
    check(case, FORWARD, pivoted=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_iters", [1, 7, 20])
@pytest.mark.parametrize("length", [1, 6, 7])
def test_segments_of_any_length(length, n_iters, form):
    check(Case("randn_8", 4, 4, n_iters, form), BACKWARD, length=length)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("logits", ["randn_30", "masked"])
def test_pairs_are_given_up_where_they_could_overflow(logits, form):
    case = Case(logits, 2, 8, 24, form, batch=16)
    call = call_of(case)
    choices = (choice(case, FORWARD, paired=paired) for paired in (True, False))
    paired, single = (launch.constants(call, case.eps, of, "full") for of in choices)
    assert (paired != single) == (form == "deepseek")
    check(case, FORWARD, BACKWARD, paired=True)


def test_history_in_slices_of_the_batch(monkeypatch):
    case = Case("randn_3", 3, 4, 30, "log", batch=70)
    x, dy = case.inputs()
    selected = choice(case, HISTORY)
    launches = []
    run = door.run
    launching_as(monkeypatch, run=lambda *args: launches.append(args[1].size(0)) or run(*args))
    monkeypatch.setattr(launch, "SCRATCH_BYTES", 33 * 4 * (32 * 7 + 12))
    ratios = case.judge(dx=launch.backward(dy, x, *case.arguments, selected))
    assert launches == [32, 32, 6]
    assert ratios["dX"] <= 1, ratios


@pytest.mark.parametrize(("iters", "is_kept"), [(20, True), (10_000, False)])
def test_many_iterations_keep_no_history_for_every_persistent_block(iters, is_kept):
    """A config tuned for 20 iterations is used for any number; one matrix once had 3.9 GB of scratch."""
    device, row = DEVICES["h200"], KERNELS["sinkhorn_backward_history"]
    call = SinkhornCall(False, 1, "float32", 16, 16, iters)
    of_space = candidates(row, call, device)
    persistent = next(c for c in of_space if "num_sm_multiplier" in dict(c.config))
    given = Chosen(persistent, build(row, persistent.config), device, "ptx", False, False)
    served = launch.with_bounded_history(given, call, torch.device("cpu"))
    assert (served is given) == is_kept
    assert in_space(row, served.choice, call, device)
    assert served.kernel.config == served.choice.config
    kept = launch.places(persistent, device, torch.device("cpu")) * 4 * 32 * sum(launch.history_steps(call))
    assert (kept <= launch.SCRATCH_BYTES) == is_kept
    assert is_kept or not launch.is_persistent(served.choice, "ptx")


def test_a_gpu_with_more_units_than_its_row_has_places_for_all_its_blocks(monkeypatch):
    """HELION_SINKHORN_DEVICE=h200 on a B200: blocks 133 to 148 stored beyond the scratch."""
    choice = Choice(
        "sinkhorn_backward_history", (("block_sizes", (4,)), ("num_sm_multiplier", 2)), (), "a test"
    )
    properties = types.SimpleNamespace(multi_processor_count=148)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda at: properties)
    assert launch.places(choice, DEVICES["h200"], torch.device("cuda", 0)) == 148 * 2 * 4
    assert launch.places(choice, DEVICES["b200"], torch.device("cpu")) == 8 * DEVICES["b200"].compute_units


@pytest.mark.parametrize("name", [*BACKWARDS, "the CPU path"])
def test_a_gradient_far_below_the_upstream_one_keeps_its_digits(name):
    """One entry holds its row, and the other row's upstream gradients nearly agree: a ten-thousandth is left.

    With line sums taken back once the kernels would be off by 8e-4 of it, and the CPU path by 1.6e-4.
    """
    x = torch.tensor([[[0.339619994, -39.5762291], [0.371227413, 0.382757157]]])
    dy = torch.tensor([[[-1.09289432, 1.45696187], [-0.0531842187, -0.0539020263]]])
    arguments = 1, 0.0, "log", "cols"
    if name in KERNELS:
        call = launch.call_of(x, *arguments)
        dx = launch.backward(dy, x, *arguments, default_choice(KERNELS[name], call, DEVICES["h200"]))
    else:
        dx = eager.backward(dy, x, *arguments)
    _, exact = value_and_gradient(
        lambda t: reference.sinkhorn(t, 1, form="log", first="cols"), x.double(), dy.double()
    )
    assert exact.abs().max() < 1e-4 * dy.abs().max()
    assert (dx - exact).abs().max() < 1e-5 * exact.abs().max()


@pytest.mark.parametrize(
    ("n", "m", "eps", "n_iters"),
    [(1, 128, 1.0, 20), (2, 64, 1.0, 30), (4, 16, 0.5, 100), (16, 4, 0.5, 100), (3, 5, 0.5, 400)],
)
def test_rectangular_matrices_with_a_large_eps_stay_in_range(n, m, eps, n_iters):
    x, dy = (randn(8, n, m, seed=seed) for seed in (0, 1))
    true, gradient = value_and_gradient(
        lambda t: reference.sinkhorn(t, n_iters, eps=eps), x.double(), dy.double()
    )
    arguments = n_iters, eps, "deepseek", "rows"
    torch.testing.assert_close(eager.forward(x, *arguments, torch.float32).double(), true, rtol=1e-4, atol=0)
    torch.testing.assert_close(eager.backward(dy, x, *arguments).double(), gradient, rtol=0, atol=1e-5)


def test_slices_of_the_batch_do_not_show(monkeypatch):
    case = Case("randn_3", 3, 4, batch=50)
    x, dy = case.inputs()
    whole = eager.forward(x, *case.arguments, torch.float32), eager.backward(dy, x, *case.arguments)
    monkeypatch.setattr(line_sums, "CACHE_BYTES", 1)
    parts = eager.forward(x, *case.arguments, torch.float32), eager.backward(dy, x, *case.arguments)
    assert len([*line_sums.slices("rows", x)[1]]) > 1
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


@pytest.mark.parametrize("solver", ["direct", "cg"])
@pytest.mark.parametrize(("n", "m"), [(1, 3), (3, 5), (15, 16), (16, 16), (17, 33), (64, 64)])
def test_an_implicit_gradient_has_the_same_bits_alone_and_beside_others(n, m, solver):
    """Few lie in memory otherwise than many, and long lines otherwise than short ones."""
    p, dy = randn(37, n, m).softmax(-1), randn(37, n, m, seed=1)

    def of(part):
        return implicit.backward(dy[part], p[part], 5, "corrected", solver, torch.float32)

    whole = of(slice(None))
    for part in (slice(0, 1), slice(34, 37), slice(1, 30)):
        assert torch.equal(of(part), whole[part])


FORKS = """
import os, time, torch
from helion_sinkhorn import sinkhorn
torch.set_num_threads(2)
for batch in (100, 1 << 15):
    x = torch.randn(batch, 4, 4, requires_grad=True)
    for form in ("deepseek", "log"):
        sinkhorn(x, form=form).sum().backward()
    p = sinkhorn(x)
    child = os.fork()
    if child == 0:
        torch.softmax(torch.ones(4096, 64), -1)
        os._exit(0 if torch.equal(sinkhorn(x), p) else 1)
    for _ in range(100):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            print(batch, status)
            break
        time.sleep(0.1)
    else:
        os.kill(child, 9)
"""


def test_a_process_forked_after_a_call_does_not_hang():
    done = python("-c", FORKS)
    assert done.stdout == "100 0\n32768 0\n", done.stderr
