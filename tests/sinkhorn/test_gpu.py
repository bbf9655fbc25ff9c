"""`sinkhorn` on a CUDA or ROCm device, against float64.

`make accuracy` tests the kernels there on every kind of logits, and that their bits are the same in other
runs, splits and places of a batch, and from entries that lie apart.  Here are other sizes and variants, and
what else a call may be.  A test compiles few programs and runs many inputs through them: a backward takes
seconds to compile.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from autograd_calls import value_and_gradient
from sinkhorn_case import Case
from sinkhorn_kernels import BACKWARDS, FORWARD, call_of, choice, ratios

from helion_sinkhorn import plan, sinkhorn
from helion_sinkhorn.configs.device import current
from helion_sinkhorn.ops.sinkhorn import launch
from helion_sinkhorn.ops.sinkhorn.implicit.launch import implicit_backward
from helion_sinkhorn.ops.sinkhorn.space import over_threads
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.kernel import Choice

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
FORMS = ["deepseek", "log"]


def by_kernels(x, dy, **options):
    """P and its gradient."""
    return value_and_gradient(lambda t: sinkhorn(t, implementation="helion", **options), x, dy)


def assert_within_budget(ratios: dict[object, dict[str, float]]) -> None:
    assert ratios
    beyond = {key: value for key, value in ratios.items() if max(value.values()) > 1}
    assert not beyond


def check(*cases: Case) -> None:
    """Values and gradients of the public function."""
    ratios = {}
    for case in cases:
        x, dy = case.inputs(DEVICE)
        ratios[case] = case.judge(*by_kernels(x, dy, **case.options))
    assert_within_budget(ratios)


@pytest.mark.parametrize(
    ("n", "m", "form", "first"),
    [
        (1, 1, "log", "rows"), (2, 2, "deepseek", "cols"), (5, 5, "log", "cols"), (6, 6, "deepseek", "rows"),
        (9, 9, "deepseek", "cols"), (12, 12, "log", "rows"), (20, 20, "deepseek", "rows"),
        (31, 31, "log", "cols"), (100, 100, "deepseek", "rows"), (128, 128, "log", "rows"),
        (1, 7, "deepseek", "rows"), (7, 2, "log", "cols"), (16, 4, "log", "rows"),
        (128, 3, "deepseek", "cols"),
    ],
)  # fmt: skip
def test_sizes(n, m, form, first):
    """Those that the gate has not, in batches that fill no tile; 40 iterations of small ones restart."""
    batches, n_iters = ((1, 2, 515), 40) if n * m <= 144 else ((1, 5), 5)
    check(
        *(Case("randn_3", n, m, n_iters, form, first, batch) for batch in batches),
        Case("masked", n, m, n_iters, form, first, batch=3),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "m"), [(4, 4), (3, 5), (16, 16)])
def test_narrow_types_are_rounded_once(n, m, form, dtype):
    case = Case("randn_3", n, m, 20, form, batch=64, dtype=dtype)
    x, dy = case.inputs(DEVICE)
    p, dx = by_kernels(x, dy, **case.options)
    wide = sinkhorn(x, out_dtype=torch.float32, implementation="helion", **case.options)
    assert (p.dtype, dx.dtype, wide.dtype) == (dtype, dtype, torch.float32)
    assert_within_budget({"narrow": case.judge(p, dx), "wide": case.judge(wide)})


def judged(case: Case, name: str, config=None, **variant) -> dict[str, float]:
    """One kernel, requested by name and variant."""
    selected = choice(case, name, device=current(0), **variant)
    if config is not None:
        selected = dataclasses.replace(selected, config=config)
    return ratios(case, selected, DEVICE)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "m", "thread"), [
    (4, 4, (4, 4)), (4, 4, (2, 4)), (4, 4, (2, 2)), (4, 4, (0, 0)), (2, 8, (2, 8)), (2, 8, (2, 4)),
    (8, 8, (8, 8)), (8, 8, (8, 4)), (8, 8, (4, 8)), (16, 16, (8, 8)), (16, 4, (8, 2)),
])  # fmt: skip
def test_every_way_to_hold_a_matrix(n, m, thread, form):
    case = Case("randn_3", n, m, 5, form, batch=515)
    config = over_threads(call_of(case), current(0), *(thread if any(thread) else (n, m)))
    by_kernel = {name: judged(case, name, config, thread=thread) for name in (FORWARD, *BACKWARDS)}
    if any(thread):
        blocks = (*config, ("pid_type", "persistent_interleaved"), ("num_sm_multiplier", 1))
        by_kernel["persistent"] = judged(case, "sinkhorn_backward_history", blocks, thread=thread)
    assert_within_budget(by_kernel)


def test_history_in_slices_of_the_batch():
    case = Case("randn_3", 4, 4, 60, "log")
    x, dy = case.inputs(DEVICE)
    _, dx = by_kernels(x, dy, **case.options)
    assert_within_budget({"five": case.judge(dx=dx)})
    copies = 4 * launch.SCRATCH_BYTES // (4 * 60 * 8) // case.batch
    _, many = by_kernels(x.repeat(copies, 1, 1), dy.repeat(copies, 1, 1), **case.options)
    assert torch.equal(many.view(copies, *dx.shape), dx.expand(copies, *dx.shape))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "m"), [(3, 3), (4, 4), (7, 2), (16, 16)])
def test_a_matrix_with_nan_or_without_a_row_is_nan_and_no_other(n, m, form):
    """Whatever the device's maximum makes of NaN."""
    case = Case("randn_3", n, m, 20, form, batch=70)
    x, dy = case.inputs(DEVICE)
    expected = by_kernels(x, dy, **case.options)
    others = torch.arange(70, device=DEVICE) != 33
    places = [
        ((i, j), value) for i, j in ((0, 0), (n - 1, m - 1), (n - 1, 0)) for value in (math.nan, math.inf)
    ]
    for place, value in (*places, ((n - 1,), -math.inf)):
        spoiled = x.clone()
        spoiled[33][place] = value
        for tensor, clean in zip(by_kernels(spoiled, dy, **case.options), expected, strict=True):
            assert tensor[33].isnan().all()
            assert torch.equal(tensor[others], clean[others])


def test_more_than_two_to_the_31_elements(monkeypatch):
    free, _ = torch.cuda.mem_get_info()
    if free < 24 << 30:
        pytest.skip(f"needs 24 GiB of free device memory, {free >> 30} GiB are free")
    # batches far apart may have different entries; here all get the entry of 300 matrices
    choose = door.choose
    monkeypatch.setattr(door, "choose", lambda kernel, call, batch, device: choose(kernel, call, 300, device))
    case = Case("randn_3", 4, 4, 3, batch=4096, dtype=torch.bfloat16)
    x, dy = case.inputs(DEVICE)
    p, dx = by_kernels(x, dy, **case.options)
    assert_within_budget({"one copy": case.judge(p, dx)})
    copies = (1 << 31) // x.numel() + 1
    many = by_kernels(x.repeat(copies, 1, 1), dy.repeat(copies, 1, 1), **case.options)
    assert many[0].numel() > 1 << 31
    for result, expected in zip(many, (p, dx), strict=True):
        different = sum(int((part != expected).sum()) for part in result.split(case.batch))
        assert different == 0


def test_a_device_that_is_not_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    case = Case("randn_3", 4, 4, batch=33)
    x, dy = case.inputs(f"{DEVICE}:1")
    with torch.cuda.device(0):
        p, dx = by_kernels(x, dy, **case.options)
        assert torch.cuda.current_device() == 0
    assert p.device == dx.device == x.device
    assert_within_budget({"cuda:1": case.judge(p, dx)})


def test_threads_and_streams():
    cases = [Case("randn_3", n, n, 6, form, batch=2000, seed=n) for n in (3, 4) for form in FORMS]
    inputs = [case.inputs(DEVICE) for case in cases]
    torch.cuda.synchronize()
    start = threading.Barrier(len(cases))

    def work(case: Case, given: tuple[torch.Tensor, ...]) -> list[tuple[torch.Tensor, ...]]:
        stream = torch.cuda.Stream()
        start.wait()
        with torch.cuda.stream(stream):
            results = [by_kernels(*given, **case.options) for _ in range(20)]
        stream.synchronize()
        return results

    with ThreadPoolExecutor(len(cases)) as threads:
        by_thread = [*threads.map(work, cases, inputs)]
    for case, given, results in zip(cases, inputs, by_thread, strict=True):
        alone = by_kernels(*given, **case.options)
        assert_within_budget({case: case.judge(*alone)})
        assert all(torch.equal(a, b) for result in results for a, b in zip(result, alone, strict=True))


def test_what_is_compiled_for_many_sizes_takes_the_kernels_where_eps_lets_it():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: sinkhorn(x, eps=0.5), dynamic=True, fullgraph=True, backend="eager")
    for n, m in ((4, 16), (4, 4), (16, 16), (3, 40)):
        x = torch.randn(5, n, m, device=DEVICE)
        assert plan(x, eps=0.5).implementation == ("helion" if n == m else "pytorch")
        assert torch.equal(compiled(x), sinkhorn(x, eps=0.5))


def test_launch_hooks_of_triton_see_a_kept_launch():
    """A profiler, Proton for one, adds them."""
    import triton

    x, _ = Case("randn_3", 4, 4).inputs(DEVICE)
    expected = [sinkhorn(x) for _ in range(2)][-1]
    names, hooks = [], triton.knobs.runtime.launch_enter_hook

    def hook(described):
        names.append(described.get()["name"])

    hooks.add(hook)
    try:
        p = sinkhorn(x)
    finally:
        hooks.remove(hook)
    assert len(names) == 1
    assert "sinkhorn_forward" in names[0]
    assert torch.equal(p, expected)


@pytest.mark.parametrize("of", ["a batch of one", "the second of a block"])
def test_configs_for_which_compilers_once_made_two_formulas(of):
    """A batch of one under persistent blocks, and two matrices of the full system in one block."""
    blocks = {"block_sizes": (2,), "num_warps": 1}
    if of == "a batch of one":
        n, kernel = 32, "sinkhorn_backward_history"
        blocks |= {"pid_type": "persistent_interleaved", "num_sm_multiplier": 8}
    else:
        n, kernel = 16, "sinkhorn_implicit_cg"
    variant = {"thread": (8, 8) if n == 32 else (0, 0)}
    choice = Choice(kernel, tuple(sorted(blocks.items())), tuple(sorted(variant.items())), "")
    x, dy = torch.randn(2, 4, n, n, device=DEVICE)
    p = sinkhorn(x)

    def gradient(part: slice) -> torch.Tensor:
        if n == 32:
            return launch.backward(dy[part], x[part], 20, 1e-6, "deepseek", "rows", choice)
        return implicit_backward(dy[part], p[part], 4, "full", "cg", torch.float32, choice)

    alone = torch.cat([gradient(slice(k, k + 1)) for k in range(len(x))])
    assert torch.equal(alone, gradient(slice(None)))
