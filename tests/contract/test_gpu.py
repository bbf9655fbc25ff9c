"""Operators on a CUDA or ROCm device: layouts, dtypes, programs, memory, large tensors, graphs, streams."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal
from contract import DTYPES, ROWS, called, listed, of_size, upstream_of
from cuda_graphs import capture
from layouts import LAYOUTS, laid_out

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
PARTS = "hc_mixes", "hc_split_sinkhorn", "hc_pre", "hc_post"


def arguments(name, *lead, **dtypes):
    return {k: x.to(DEVICE) for k, x in ROWS[name].arguments(*lead, **dtypes).items()}


SIZES = [
    ("sinkhorn", (4, 4)), ("sinkhorn", (3, 5)), ("sinkhorn, implicit", (4, 4)),
    ("sinkhorn, implicit", (32, 32)), ("dot_compress", (300, 256, 64)),
    *((name, (4, 72)) for name in (
        *PARTS, "hc_mixes, merged", "hc_split_sinkhorn, reduced", "hc_pre, norm", "hc_post, without bias",
        "hc_site",
    )),
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "size"), SIZES, ids=str)
def test_layouts_change_no_bit(name, size, layout, monkeypatch):
    of_size(monkeypatch, *size)
    dtypes = DTYPES["float32" if "reduced" in name or name.startswith("sinkhorn") else "narrow"]
    given, change = laid_out(ROWS[name], layout, DEVICE, **dtypes)
    contiguous = [t.clone(memory_format=torch.contiguous_format) for t in given]
    expected = called(ROWS[name].function, contiguous, lambda g: change(g).contiguous())
    assert_equal(called(ROWS[name].function, given, change), expected)


@pytest.mark.parametrize("name", [*PARTS, "hc_mixes, merged"])
def test_float64_takes_pytorch(name, monkeypatch):
    of_size(monkeypatch, 4, 33)
    given = [*ROWS[name].arguments(5, dtype=torch.float64).values()]
    there = [t.to(DEVICE) for t in given]
    expected = called(ROWS[name].function, given)
    limit = 1e-13 if name in ("hc_pre", "hc_post") else 1e-12
    for result, t in zip(called(ROWS[name].function, there), expected, strict=True):
        torch.testing.assert_close(result.cpu(), t, rtol=limit, atol=limit)
    if name in ("hc_pre", "hc_post", "hc_mixes, merged"):
        with pytest.raises(NotImplementedError, match="the kernels compute in float32"):
            ROWS[name].function(*there, implementation="helion")


@pytest.mark.parametrize("name", [*PARTS, "hc_site"])
def test_autocast_changes_no_bit(name, monkeypatch):
    of_size(monkeypatch, 4, 136)
    given = [*arguments(name, 64, **DTYPES["narrow"]).values()]
    plain = called(ROWS[name].function, given)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert_equal(called(ROWS[name].function, given), plain)


# the sum that is a bias's gradient is another one by inductor
@pytest.mark.parametrize("name", ["hc_pre", "hc_post, without bias"])
def test_compiled_once_for_any_number_of_tokens(name, monkeypatch):
    of_size(monkeypatch, 4, 128)
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    compiled = torch.compile(ROWS[name].function, fullgraph=True, backend=counter, dynamic=True)
    frames = []
    for tokens in (3, 5, 130):
        given = [*arguments(name, tokens, **DTYPES["narrow"]).values()]
        assert_equal(called(compiled, given), called(ROWS[name].function, given))
        frames.append(counter.frame_count)
    # the first compilation is begun anew where torch makes a constant of an option
    assert frames[1:] == frames[:-1]


@pytest.mark.parametrize("name", ["hc_mixes", "hc_site"])
def test_two_programs_take_all_token_counts_near_a_tuned_one(name, monkeypatch):
    """Triton compiles one for multiples of 16 and one for the rest: then a server waits for no compiler."""
    of_size(monkeypatch, 4, 136)

    def call(tokens):
        called(ROWS[name].function, [*arguments(name, tokens, **DTYPES["narrow"]).values()])

    call(300)
    call(256)
    from triton import knobs

    # the names of kernels that are compiled, or read from Triton's cache
    compiled: list[str] = []
    hook = "jit_post_compile_hook"
    monkeypatch.setattr(knobs.runtime, hook, lambda **said: compiled.append(said["fn"].name))
    for tokens in (2, 3, 17, 64, 100, 288, 299):
        call(tokens)
    assert compiled == []


@pytest.mark.parametrize("name", ["hc_pre", "hc_post"])
def test_a_backward_takes_device_memory_for_the_gradients_alone(name, monkeypatch):
    """A bias with a gradient would keep that of f in float32."""
    of_size(monkeypatch, 4, 4096)
    given = arguments(name, 256, **DTYPES["narrow"])
    trained = [x.requires_grad_() for k, x in given.items() if k != "bias"]
    y = ROWS[name].function(*given.values())
    upstream = upstream_of(y)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradients = torch.autograd.grad([y], trained, upstream)
    torch.cuda.synchronize()
    needed = sum(t.nbytes for t in gradients)
    assert torch.cuda.max_memory_allocated() - before <= 1.01 * needed + 4096


LARGEST = 1 << 31


@pytest.mark.parametrize("name", [*PARTS, "hc_site"])
def test_more_than_two_to_the_31_elements(name, monkeypatch):
    """The last tokens have the bits of a call of their own; the others, zeros, have all the same."""
    if torch.cuda.mem_get_info()[0] < 48 << 30:
        pytest.skip("needs 48 GiB of free memory")
    of_size(monkeypatch, 4, 7168)
    row, few = ROWS[name], arguments(name, 3, **DTYPES["narrow"])
    of_tokens = [bool(dims) for dims in row.token_dims().values()]
    entries = max(x[0].numel() for x, mine in zip(few.values(), of_tokens, strict=True) if mine)

    def behind_zeros(t):
        return torch.cat([t.new_zeros(LARGEST // entries + 5, *t.shape[1:]), t])

    def results(given, make):
        leaves = [x.requires_grad_() for x in given]
        values = listed(row.function(*leaves))
        return [*(y.detach() for y in values), *torch.autograd.grad(values, leaves, [*map(make, upstream)])]

    upstream = upstream_of(row.function(*few.values()))
    expected = results([x.clone() for x in few.values()], lambda g: g)
    many = [behind_zeros(x) if mine else x for x, mine in zip(few.values(), of_tokens, strict=True)]
    places = [True] * len(upstream) + of_tokens
    for result, t, mine in zip(results(many, behind_zeros), expected, places, strict=True):
        if mine:
            assert torch.equal(result[-3:], t)
            assert (result[:-3] == result[0]).all()
        else:
            # zeros add nothing to a sum, in whatever order
            torch.testing.assert_close(result, t, rtol=1e-5, atol=1e-5 * float(t.abs().max()))


each_of_pytorch = pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not row.kernels])


def leaves_of(name, seed=0):
    return [*arguments(name, 2, 150, seed=seed).values()]


@each_of_pytorch
def test_a_graph_replays_results_and_gradients_for_other_values(name):
    function, given, others = ROWS[name].function, leaves_of(name), leaves_of(name, seed=1)
    expected = called(function, others)
    leaves = [x.requires_grad_() for x in given]
    upstream = upstream_of(function(*leaves))

    def step():
        results = listed(function(*leaves))
        return [*results, *torch.autograd.grad(results, leaves, upstream)]

    graph, captured = capture(step)
    with torch.no_grad():
        for leaf, other in zip(leaves, others, strict=True):
            leaf.copy_(other)
    graph.replay()
    assert_equal([t.detach() for t in captured], expected)


@each_of_pytorch
def test_another_stream(name):
    function, given, stream = ROWS[name].function, leaves_of(name), torch.cuda.Stream()
    expected = called(function, given)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        results = called(function, given)
    torch.cuda.current_stream().wait_stream(stream)
    assert_equal(results, expected)
