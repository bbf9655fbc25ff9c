"""dot_compress on a CUDA or ROCm device, against float64 on the CPU.

`make accuracy` tests the kernels there on its workloads, and that their bits are the same again and in any
batch.
"""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal
from dot_compress_problem import inputs, results

from helion_sinkhorn import dot_compress

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
BF16 = torch.bfloat16


def on_gpu(given, **options):
    """The results of the kernels."""
    given = [None if t is None else t.to(DEVICE) for t in given]
    return results(*given, implementation="helion", **options)


def test_compiled():
    given = inputs(3, 300, 256, 64, dtype=BF16)
    compiled = torch.compile(dot_compress, fullgraph=True)
    assert_equal(on_gpu(given, f=compiled).values(), on_gpu(given).values())


def test_more_than_two_to_the_31_elements():
    free, _ = torch.cuda.mem_get_info()
    if free < 16 << 30:
        pytest.skip(f"needs 16 GiB of free memory, there are {free >> 30}")
    x = torch.zeros(2600, 3219, 256, dtype=BF16, device=DEVICE)
    y = torch.zeros(2600, 3219, 16, dtype=BF16, device=DEVICE)
    some = [t.to(DEVICE) for t in inputs(2, 3219, 256, 16, dtype=BF16)[:2]]
    x[-2:], y[-2:] = some
    out = dot_compress(x, y, implementation="helion")
    assert torch.equal(out[-2:], dot_compress(*some, implementation="helion"))
    assert not out[:-2].any()
