"""The torch operators: what autograd, compilers, functorch, autocast, checkpoints and threads see of them."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from autograd_calls import (
    assert_batched_gradients,
    assert_equal,
    dynamic_frames,
    randn,
    value_and_gradient,
)
from cuda_graphs import capture
from forked import python
from targets import INDUCTOR_BY_NIGHT
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from helion_sinkhorn import nn, reference, sinkhorn

FORWARD = torch.ops.helion_sinkhorn.sinkhorn.default
BACKWARD = torch.ops.helion_sinkhorn.sinkhorn_backward.default
DEFAULTS = (20, 1e-6, "deepseek", "rows", "pytorch")
LOG = (7, 0.0, "log", "cols", "pytorch")


LAYOUTS = {
    "contiguous": lambda: randn(3, 4, 5),
    "transposed": lambda: randn(3, 5, 4).mT,
    "one matrix": lambda: randn(4, 5),
    "leading": lambda: randn(2, 3, 4, 5),
    "offset": lambda: randn(5, 6, 7)[1:4, 1:5, 2:],
    "expanded": lambda: randn(1, 4, 5).expand(3, 4, 5),
    "empty": lambda: randn(0, 4, 5),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("dtype", "out_dtype", "arguments"),
    [
        (torch.float32, torch.float32, DEFAULTS),
        (torch.bfloat16, torch.float32, LOG),
        (torch.float64, torch.float64, DEFAULTS),
    ],
    ids=str,
)
def test_opcheck(layout, dtype, out_dtype, arguments):
    x = LAYOUTS[layout]().to(dtype)
    torch.library.opcheck(FORWARD, (x.clone(memory_format=torch.preserve_format), *arguments, out_dtype))
    torch.library.opcheck(FORWARD, (x.detach().requires_grad_(), *arguments, out_dtype))
    torch.library.opcheck(BACKWARD, (randn(*x.shape, seed=1, dtype=out_dtype), x, *arguments))


@INDUCTOR_BY_NIGHT
def test_compiled_by_inductor():
    def f(x):
        return sinkhorn(x * 2).sin() + sinkhorn(x.mT, 7, form="log", first="cols").mT.square()

    x, dp = randn(6, 4, 4), randn(6, 4, 4, seed=1)
    compiled = torch.compile(f, fullgraph=True)
    for actual, expected in zip(
        value_and_gradient(compiled, x, dp), value_and_gradient(f, x, dp), strict=True
    ):
        # the operators are the same; sin, square and their derivatives are compiled
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("marked", [False, True])
def test_batch_size_never_recompiles(marked):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(sinkhorn, fullgraph=True, backend=counter)
    # unmarked, Dynamo takes the first batch size for a constant and the second for a symbol
    frames = []
    for batch in (6, 11, 2, 64, 1000, 4097):
        x, dp = randn(batch, 4, 4).requires_grad_(), randn(batch, 4, 4, seed=1)
        if marked:
            torch._dynamo.mark_dynamic(x, 0)
        p = compiled(x)
        (dx,) = torch.autograd.grad(p, x, dp)
        assert_equal((p, dx), value_and_gradient(sinkhorn, x, dp))
        frames.append(counter.frame_count)
    assert frames == ([1] * 6 if marked else [1] + [2] * 5)


def test_compiled_function_of_a_parameter():
    # compiling imports DTensor, and with it the registration of the sharding rule becomes due
    import torch.distributed.tensor

    torch._dynamo.reset()
    logits, dp = torch.nn.Parameter(randn(3, 4, 4)), randn(3, 4, 4, seed=1)
    p = torch.compile(sinkhorn, fullgraph=True, backend="aot_eager")(logits)
    assert_equal((p, *torch.autograd.grad(p, logits, dp)), value_and_gradient(sinkhorn, logits, dp))


class Mixed(torch.nn.Module):
    def forward(self, x):
        return sinkhorn(x, 5, form="log") + sinkhorn(x.mT)


def test_exported_program_runs_at_other_batch_sizes():
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(Mixed(), (randn(3, 4, 4),), dynamic_shapes=({0: batch},), strict=True)
    assert sum(node.target is FORWARD for node in program.graph.nodes) == 2
    for size in (2, 3, 50):
        x, dp = randn(size, 4, 4, seed=size), randn(size, 4, 4, seed=1)
        expected = value_and_gradient(Mixed(), x, dp)
        assert_equal(value_and_gradient(program.module(), x, dp), expected)
        assert torch.equal(program.run_decompositions().module()(x), expected[0])


@pytest.mark.parametrize("options", [{}, {"form": "log"}, {"eps": 0.01}], ids=str)
def test_exported_program_runs_at_other_sizes_of_matrices(options):
    """Exported for 4 x 6: it takes more rows than columns, and as many."""

    class Module(torch.nn.Module):
        def forward(self, x):
            return sinkhorn(x, 5, **options)

    sizes = {1: torch.export.Dim("n", min=2, max=64), 2: torch.export.Dim("m", min=2, max=64)}
    module = torch.export.export(Module(), (randn(3, 4, 6),), dynamic_shapes=(sizes,)).module()
    for n, m in ((4, 6), (7, 6), (6, 6), (64, 2)):
        x = randn(3, n, m)
        assert torch.equal(module(x), Module()(x))


def test_sizes_beyond_the_kernels_are_compiled_once():
    def f(x):
        return sinkhorn(x, 2, form="log")

    assert dynamic_frames(f, [(randn(2, 130 + k, 200 + 3 * k),) for k in range(3)]) == 1


def test_an_eps_that_changes_is_compiled():
    """Each anew; also one that is too large for the kernels with so many columns."""

    def f(x, eps):
        return sinkhorn(x, 20, eps=eps)

    assert dynamic_frames(f, [(randn(2, 4, 16), eps) for eps in (0.5, 0.6, 0.01)]) == 3


def test_functionalized_trace_holds_each_operator_once():
    def gradient(x, dp):
        return torch.autograd.grad(sinkhorn(x), x, dp)

    x, dp = randn(3, 4, 4).requires_grad_(), randn(3, 4, 4, seed=1)
    graph = make_fx(torch.func.functionalize(lambda x, dp: sinkhorn(x.clone().mul_(2))))(x.detach(), dp)
    assert [node.target for node in graph.graph.nodes].count(FORWARD) == 1
    assert torch.equal(graph(x.detach(), dp), sinkhorn(x.detach() * 2))
    graph = make_fx(gradient)(x, dp)
    targets = [node.target for node in graph.graph.nodes]
    assert (targets.count(FORWARD), targets.count(BACKWARD)) == (1, 1)
    assert_equal(graph(x, dp), gradient(x, dp))


@pytest.mark.parametrize(
    "x", [randn(3, 4, 4), randn(4, 3, 4).transpose(0, 1), randn(1, 4, 4).expand(3, 4, 4)]
)
@pytest.mark.parametrize("out_dtype", [None, torch.bfloat16, torch.float64])
def test_fakes_have_the_metadata_of_what_runs(x, out_dtype):
    p, dx = value_and_gradient(
        lambda x: sinkhorn(x, out_dtype=out_dtype), x, randn(*x.shape, dtype=out_dtype)
    )
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
        upstream = torch.empty(x.shape, dtype=out_dtype)
        q, dq = value_and_gradient(lambda x: sinkhorn(x, out_dtype=out_dtype), fake, upstream)
    meta = sinkhorn(x.to("meta"), out_dtype=out_dtype)
    for actual, expected in ((q, p), (dq, dx), (meta, p)):
        assert (actual.shape, actual.stride(), actual.dtype) == (
            expected.shape,
            expected.stride(),
            expected.dtype,
        )


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("form", ["deepseek", "log"])
def test_vmap_over_any_dimension(dim, form):
    x = randn(3, 4, 5).movedim(0, dim)
    mapped = torch.vmap(lambda x: sinkhorn(x, form=form), in_dims=dim, out_dims=dim)
    assert torch.equal(mapped(x), sinkhorn(x.movedim(dim, 0), form=form).movedim(0, dim))


@pytest.mark.parametrize("backward", ["exact", "implicit"])
def test_batched_gradients(backward):
    assert_batched_gradients(lambda x: sinkhorn(x, backward=backward), randn(2, 4, 4))


def test_nested_and_chunked_vmap():
    x = randn(2, 3, 4, 5)
    expected = sinkhorn(x)
    # the outer map takes axis 3, the inner one axis 1 of what is left
    moved = x.permute(2, 1, 3, 0)
    assert torch.equal(torch.vmap(torch.vmap(sinkhorn, in_dims=1), in_dims=3)(moved), expected)
    assert torch.equal(torch.vmap(sinkhorn, chunk_size=4)(x.flatten(0, 1)), expected.flatten(0, 1))


@pytest.mark.parametrize(("x_dim", "dp_dim"), [(0, 0), (0, None), (None, 0), (2, 1), (1, -1)], ids=str)
def test_vmap_of_grad(x_dim, dp_dim):
    def gradient(x, dp):
        return torch.func.grad(lambda x: (sinkhorn(x) * dp).sum())(x)

    x, dp = randn(6, 4, 5), randn(6, 4, 5, seed=1)
    arguments = [t[0] if dim is None else t.movedim(0, dim) for t, dim in ((x, x_dim), (dp, dp_dim))]
    mapped = torch.vmap(gradient, in_dims=(x_dim, dp_dim))(*arguments)
    x, dp = (t[:1].expand_as(t) if dim is None else t for t, dim in ((x, x_dim), (dp, dp_dim)))
    assert torch.equal(mapped, value_and_gradient(sinkhorn, x, dp)[1])


def test_func_grad_and_jacobians_are_those_of_autograd():
    x, dp = randn(4, 5), randn(4, 5, seed=1)
    _, dx = value_and_gradient(sinkhorn, x, dp)
    assert torch.equal(torch.func.grad(lambda x: (sinkhorn(x) * dp).sum())(x), dx)
    p, pull = torch.func.vjp(sinkhorn, x)
    assert_equal((p, *pull(dp)), (sinkhorn(x), dx))
    jacobian = torch.func.jacrev(sinkhorn)(x)
    rows = [value_and_gradient(sinkhorn, x, unit.view(4, 5))[1] for unit in torch.eye(20)]
    assert torch.equal(jacobian, torch.stack(rows).view(4, 5, 4, 5))
    exact = torch.func.jacrev(reference.sinkhorn)(x.double())
    torch.testing.assert_close(jacobian.double(), exact, rtol=0, atol=80 * 7 * 2**-24)
    per_matrix = torch.vmap(torch.func.jacrev(sinkhorn))(torch.stack([x, dp]))
    assert torch.equal(per_matrix[0], jacobian)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("logits_dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("options", [{}, {"form": "log"}, {"n_iters": 0}], ids=str)
def test_autocast_changes_no_bit(dtype, logits_dtype, options):
    x, dp = randn(5, 4, 4, dtype=logits_dtype), randn(5, 4, 4, seed=1, dtype=logits_dtype)
    plain = value_and_gradient(lambda x: sinkhorn(x, **options), x, dp)
    with torch.autocast("cpu", dtype=dtype):
        # autocast is on: a product would come out narrow
        assert (randn(2, 2) @ randn(2, 2)).dtype == dtype
        assert_equal(value_and_gradient(lambda x: sinkhorn(x, **options), x, dp), plain)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("form", ["deepseek", "log"])
def test_checkpoint(use_reentrant, form):
    runs = []

    def block(x):
        runs.append(1)
        return sinkhorn(x * 2, form=form)

    x, dp = randn(5, 4, 4), randn(5, 4, 4, seed=1)
    plain = value_and_gradient(block, x, dp)
    runs.clear()
    leaf = x.clone().requires_grad_()
    p = checkpoint(block, leaf, use_reentrant=use_reentrant)
    p.backward(dp)
    assert_equal((p, leaf.grad), plain)
    assert len(runs) == 2


def direct(x):
    return FORWARD(x, *DEFAULTS, torch.float32)


@pytest.mark.parametrize("f", [sinkhorn, direct])
def test_double_backward_says_what_to_do(f):
    x, dp = randn(3, 4, 4).requires_grad_(), randn(3, 4, 4, seed=1).requires_grad_()
    (dx,) = torch.autograd.grad(f(x), x, dp, create_graph=True)
    assert torch.equal(dx, value_and_gradient(f, x, dp.detach())[1])
    for wanted in (x, dp):
        with pytest.raises(
            NotImplementedError, match=r"no second derivative.*use helion_sinkhorn\.reference"
        ):
            torch.autograd.grad(dx.square().sum(), wanted, retain_graph=True)


def test_second_derivative_of_the_backward_operator_says_what_to_do():
    x, dp = randn(3, 4, 4).requires_grad_(), randn(3, 4, 4, seed=1)
    with pytest.raises(NotImplementedError, match=r"no second derivative.*use helion_sinkhorn\.reference"):
        BACKWARD(dp, x, *DEFAULTS).sum().backward()
    with pytest.raises(NotImplementedError, match=r"no second derivative.*use helion_sinkhorn\.reference"):
        torch.func.jacrev(torch.func.grad(lambda x: sinkhorn(x).square().sum()))(x.detach())


def forward_mode(x):
    with torch.autograd.forward_ad.dual_level():
        return sinkhorn(torch.autograd.forward_ad.make_dual(x, x.sin()))


def forward_over_backward(x):
    leaf = x.clone().requires_grad_()
    p = sinkhorn(leaf)
    with torch.autograd.forward_ad.dual_level():
        return torch.autograd.grad(p, leaf, torch.autograd.forward_ad.make_dual(x, x.sin()))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.func.jvp(sinkhorn, (x,), (x.sin(),)),
        torch.func.jacfwd(sinkhorn),
        torch.func.hessian(lambda x: sinkhorn(x).square().sum()),
        torch.vmap(lambda x: torch.func.jvp(sinkhorn, (x,), (x.sin(),))),
        forward_mode,
        forward_over_backward,
    ],
    ids=["jvp", "jacfwd", "hessian", "vmap of jvp", "dual", "dual upstream"],
)
def test_forward_mode_says_what_to_do_and_never_answers_zero(f):
    with pytest.raises(
        NotImplementedError, match=r"sinkhorn has no .*derivative.*helion_sinkhorn\.reference"
    ):
        f(randn(3, 4, 4))


def test_logits_changed_before_backward_are_noticed():
    leaf = randn(3, 4, 4).requires_grad_()
    for f in (sinkhorn, direct):
        x = leaf * 1
        p = f(x)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            p.backward(randn(3, 4, 4, seed=1))


FIRST_USE = """
import threading, torch
from helion_sinkhorn import sinkhorn

count = 16
generator = torch.Generator().manual_seed(0)
xs = torch.randn(count, 300, 4, 4, generator=generator)
dps = torch.randn(count, 300, 4, 4, generator=generator)

def run(i):
    leaf = xs[i].clone().requires_grad_()
    p = sinkhorn(leaf, form=("deepseek", "log")[i % 2])
    return p.detach(), *torch.autograd.grad(p, leaf, dps[i])

results, gate = {}, threading.Barrier(count)

def work(i):
    gate.wait()
    results[i] = run(i)

threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
for t in threads: t.start()
for t in threads: t.join()
alone = {i: run(i) for i in range(count)}
print(sorted(i for i in range(count) if i in results and all(map(torch.equal, results[i], alone[i]))))
"""


def test_sixteen_threads_at_first_use():
    done = python("-c", FIRST_USE)
    assert done.stdout.strip() == str(list(range(16))), done.stdout + done.stderr


@pytest.mark.parametrize("form", ["deepseek", "log"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reruns_give_the_same_bits(form, dtype):
    x, dp = randn(5000, 4, 4, dtype=dtype), randn(5000, 4, 4, seed=1, dtype=dtype)
    once = value_and_gradient(lambda x: sinkhorn(x, form=form), x, dp)
    for _ in range(5):
        assert_equal(value_and_gradient(lambda x: sinkhorn(x, form=form), x, dp), once)


@pytest.mark.parametrize("matrix", [(4, 4), (3, 3), (4, 5), (16, 16)], ids=str)
@pytest.mark.parametrize("form", ["deepseek", "log"])
@pytest.mark.parametrize("first", ["rows", "cols"])
def test_the_batch_around_a_matrix_changes_no_bit_of_it(matrix, form, first):
    x, dp = randn(700, *matrix), randn(700, *matrix, seed=1)

    def run(x, dp):
        return value_and_gradient(lambda x: sinkhorn(x, form=form, first=first), x, dp)

    p, dx = run(x, dp)
    for part in (slice(0, 1), slice(699, 700), slice(3, 11), slice(5, 22), slice(1, 700), slice(0, 700, 3)):
        assert_equal(run(x[part], dp[part]), (p[part], dx[part]))


@pytest.mark.parametrize("shape", [(1, 4, 4), (7, 4, 4), (3000, 4, 4), (5, 3, 7), (2, 2, 1, 9)], ids=str)
@pytest.mark.parametrize("form", ["deepseek", "log"])
def test_guard_bands_around_the_inputs_are_neither_read_nor_written(shape, form):
    x, dp = randn(*shape), randn(*shape, seed=1)
    expected = value_and_gradient(lambda x: sinkhorn(x, form=form), x, dp)
    size, band = x.numel(), 64
    buffers = [torch.full((size + 2 * band,), math.nan) for _ in range(2)]
    inner = [b[band : band + size].view(shape).copy_(t) for b, t in zip(buffers, (x, dp), strict=True)]
    leaf = inner[0].detach().requires_grad_()
    p = sinkhorn(leaf, form=form)
    assert_equal((p, *torch.autograd.grad(p, leaf, inner[1])), expected)
    assert_equal(inner, (x, dp))
    for buffer in buffers:
        assert buffer[:band].isnan().all()
        assert buffer[-band:].isnan().all()


@pytest.mark.parametrize(
    "module",
    [
        nn.Sinkhorn(7, form="log", first="cols", out_dtype=torch.float64),
        nn.FusedMHC(3),
        nn.SinkhornLaneMixer(4, iters=6),
    ],
    ids=lambda m: type(m).__name__,
)
def test_modules_survive_pickle_and_deepcopy(module):
    x = randn(2, 4, 4)
    for twin in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert twin is not module
        assert repr(twin) == repr(module)
        assert_equal([twin(x)], [module(x)])


@pytest.mark.gpu
def test_two_streams():
    xs = [randn(100_000, 4, 4, seed=i, device="cuda") for i in range(2)]
    dps = [randn(100_000, 4, 4, seed=2 + i, device="cuda") for i in range(2)]
    expected = [value_and_gradient(sinkhorn, x, dp) for x, dp in zip(xs, dps, strict=True)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    results = [None, None]
    for _ in range(20):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results[i] = value_and_gradient(sinkhorn, xs[i], dps[i])
    torch.cuda.synchronize()
    for actual, wanted in zip(results, expected, strict=True):
        assert_equal(actual, wanted)


@pytest.mark.gpu
def test_cuda_graph_replays_on_new_data():
    x = randn(4096, 4, 4, device="cuda").requires_grad_()
    dp = randn(4096, 4, 4, seed=1, device="cuda")

    def run():
        p = sinkhorn(x)
        return p, *torch.autograd.grad(p, x, dp)

    graph, captured = capture(run)
    for seed in (2, 3):
        with torch.no_grad():
            x.copy_(randn(4096, 4, 4, seed=seed))
            dp.copy_(randn(4096, 4, 4, seed=seed + 10))
        graph.replay()
        assert_equal([t.detach() for t in captured], value_and_gradient(sinkhorn, x, dp))


@pytest.mark.gpu
def test_current_device_other_than_the_tensor_s():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x, dp = randn(100, 4, 4, device="cuda:0"), randn(100, 4, 4, seed=1, device="cuda:0")
    expected = value_and_gradient(sinkhorn, x, dp)
    with torch.cuda.device(0):
        actual = value_and_gradient(sinkhorn, x.to("cuda:1"), dp.to("cuda:1"))
        assert torch.cuda.current_device() == 0
    for a, b in zip(actual, expected, strict=True):
        assert a.device == torch.device("cuda:1")
        assert torch.equal(a.to("cuda:0"), b)
