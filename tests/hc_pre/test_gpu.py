"""hc_pre on a CUDA or ROCm device, against float64 on the CPU."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal
from hc_streams import LAYOUTS, one_rounding, pre_errors, pre_inputs, pre_results

from helion_sinkhorn import hc_pre
from helion_sinkhorn.lab.pre import budget
from helion_sinkhorn.lab.pre.workloads import PLAIN

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
WORKLOADS = [w for w in PLAIN if "ci" in w.tags]


def on_device(tensors):
    return [t.to(DEVICE) for t in tensors]


def run(*inputs):
    return pre_results(*on_device(inputs), implementation="helion")


def check(*inputs):
    errors = pre_errors(run(*inputs), *inputs)
    assert max(errors.values()) <= 1, errors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_one_rounding_and_no_more(dtype):
    inputs = pre_inputs(128, c=4096, dtype=dtype)
    found, truth = run(*inputs), budget.exact(*inputs)
    assert one_rounding(found["y"].cpu(), truth["y"]) <= 1.03
    assert one_rounding(found["dx"].cpu(), truth["dx"]) <= 1.03


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_do_not_matter(layout):
    moved = [LAYOUTS[layout](t) for t in on_device(pre_inputs(3, 5, dtype=torch.bfloat16))]
    found = pre_results(*moved, implementation="helion")
    assert_equal(found.values(), run(*(t.contiguous() for t in moved)).values())


def test_a_tensor_off_the_16_byte_grid():
    inputs = on_device(pre_inputs(7, c=64, dtype=torch.bfloat16))
    shifted = []
    for t in inputs:
        room = torch.empty(t.numel() + 1, dtype=t.dtype, device=DEVICE)[1:].view(t.shape)
        shifted.append(room.copy_(t))
    assert_equal(run(*shifted).values(), run(*inputs).values())


def test_float64_takes_pytorch():
    inputs = pre_inputs(5, dtype=torch.float64)
    found, truth = pre_results(*on_device(inputs)), budget.exact(*inputs)
    for name, t in truth.items():
        torch.testing.assert_close(found[name].cpu(), t, rtol=1e-13, atol=1e-13)
    with pytest.raises(NotImplementedError, match="the kernels compute in float32"):
        hc_pre(*on_device(inputs)[:2], implementation="helion")


def test_compiled_and_at_any_number_of_tokens():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    compiled = torch.compile(hc_pre, fullgraph=True, backend=counter, dynamic=True)
    frames = []
    for tokens in (3, 5, 130):
        inputs = on_device(pre_inputs(tokens, c=128, dtype=torch.bfloat16))
        assert_equal(pre_results(*inputs, f=compiled).values(), run(*inputs).values())
        frames.append(counter.frame_count)
    # the first compilation is begun anew where torch makes a constant of y_norm_eps
    assert frames[1:] == frames[:-1]


def test_backward_takes_device_memory_for_the_gradients_alone():
    inputs = on_device(pre_inputs(256, c=4096, dtype=torch.bfloat16))
    leaves = [t.requires_grad_() for t in inputs[:2]]
    y = hc_pre(*leaves)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradients = torch.autograd.grad(y, leaves, inputs[2])
    torch.cuda.synchronize()
    needed = sum(t.nbytes for t in gradients)
    assert torch.cuda.max_memory_allocated() - before <= 1.01 * needed + 4096


def test_more_than_two_to_the_31_elements():
    n, c = 4, 7168
    tokens = (1 << 31) // (n * c) + 5
    few = on_device(pre_inputs(3, n=n, c=c, dtype=torch.bfloat16))
    x = torch.zeros(tokens, n, c, dtype=torch.bfloat16, device=DEVICE)
    pre, dy = torch.zeros(tokens, n, device=DEVICE), x.new_zeros(tokens, c)
    for t, last in zip((x, pre, dy), few, strict=True):
        t[-3:] = last
    y = hc_pre(x, pre, implementation="helion")
    expected = run(*few)
    assert torch.equal(y[-3:], expected["y"])
    assert not y[:-3].any()
    del y
    dx, dpre = torch.ops.helion_sinkhorn.hc_pre_backward(dy, x, pre, "helion", [True, True])
    assert torch.equal(dx[-3:], expected["dx"])
    assert torch.equal(dpre[-3:], expected["dpre"])
    assert not dx[:-3].any()
