"""hc_post on a CUDA or ROCm device, against float64 on the CPU."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal
from hc_streams import LAYOUTS, one_rounding, post_errors, post_inputs, post_results

from helion_sinkhorn import hc_post
from helion_sinkhorn.lab.post import budget
from helion_sinkhorn.lab.post.workloads import ROWS

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
FLOATS = torch.float32, torch.bfloat16, torch.float16, torch.float64
WORKLOADS = [w for w in ROWS if "ci" in w.tags]
OF_TOKENS = budget.RESULTS[:5]


def on_device(tensors):
    return [t if t is None else t.to(DEVICE) for t in tensors]


def run(*inputs, **options):
    return post_results(*on_device(inputs), implementation="helion", **options)


def check(*inputs, **options):
    errors = post_errors(run(*inputs, **options), *inputs, **options)
    assert max(errors.values()) <= 1, errors


def test_streams_of_one_entry_take_pytorch():
    inputs = post_inputs(9, c=1, dtype=torch.bfloat16)
    errors = post_errors(post_results(*on_device(inputs)), *inputs)
    assert max(errors.values()) <= 1, errors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_one_rounding_and_no_more(dtype):
    inputs = post_inputs(64, c=4096, dtype=dtype)
    found = run(*inputs)
    *given, bias, grad = inputs
    truth = budget.exact(*(t[None] for t in (*given, grad)), bias[None])
    for name in ("out", "df", "dx"):
        assert one_rounding(found[name].cpu(), truth[name][0]) <= 1.03


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_do_not_matter(layout):
    *given, bias, grad = on_device(post_inputs(3, 5, dtype=torch.bfloat16))
    moved = *(LAYOUTS[layout](t) for t in given), bias.repeat_interleave(2)[::2], LAYOUTS[layout](grad)
    found = post_results(*moved, implementation="helion")
    assert_equal(found.values(), run(*(t.contiguous() for t in moved)).values())


def test_tensors_off_the_16_byte_grid():
    inputs = on_device(post_inputs(7, c=64, dtype=torch.bfloat16))
    shifted = []
    for t in inputs:
        room = torch.empty(t.numel() + 1, dtype=t.dtype, device=DEVICE)[1:].view(t.shape)
        shifted.append(room.copy_(t))
    assert_equal(run(*shifted).values(), run(*inputs).values())


def test_float64_takes_pytorch():
    inputs = post_inputs(5, dtype=torch.float64)
    found = post_results(*on_device(inputs))
    *given, bias, grad = inputs
    truth = budget.exact(*(t[None] for t in (*given, grad)), bias[None])
    for name in OF_TOKENS:
        torch.testing.assert_close(found[name].cpu(), truth[name][0], rtol=1e-13, atol=1e-13)
    with pytest.raises(NotImplementedError, match="the kernels compute in float32"):
        hc_post(*on_device(given), implementation="helion")


def test_compiled_and_at_any_number_of_tokens():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    compiled = torch.compile(hc_post, fullgraph=True, backend=counter, dynamic=True)
    for tokens in (3, 5, 130):
        inputs = on_device(post_inputs(tokens, c=128, dtype=torch.bfloat16, has_bias=False))
        assert_equal(post_results(*inputs, call=compiled).values(), run(*inputs).values())
    assert counter.frame_count == 1


def test_backward_takes_device_memory_for_the_gradients_alone():
    inputs = on_device(post_inputs(256, c=4096, dtype=torch.bfloat16, has_bias=False))
    leaves = [t.requires_grad_() for t in inputs[:4]]
    out = hc_post(*leaves)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradients = torch.autograd.grad(out, leaves, inputs[5])
    torch.cuda.synchronize()
    needed = sum(t.nbytes for t in gradients)
    assert torch.cuda.max_memory_allocated() - before <= 1.01 * needed + 4096


def test_more_than_two_to_the_31_elements():
    n, c = 4, 7168
    tokens = (1 << 31) // (n * c) + 5
    few = on_device(post_inputs(3, n=n, c=c, dtype=torch.bfloat16, has_bias=False))
    expected = run(*few)
    made = [t if t is None else t.new_zeros(tokens, *t.shape[1:]) for t in few]
    for t, last in zip(made, few, strict=True):
        if t is not None:
            t[-3:] = last
    *given, grad = made
    out = hc_post(*given, implementation="helion")
    assert torch.equal(out[-3:], expected["out"])
    assert not out[:-3].any()
    del out
    found = torch.ops.helion_sinkhorn.hc_post_backward(grad, *given, "io", "helion", [True] * 4)
    for name, t in zip(("df", "dx", "dpost", "dcomb"), found, strict=True):
        assert torch.equal(t[-3:], expected[name]), name
        assert not t[:-3].any()
