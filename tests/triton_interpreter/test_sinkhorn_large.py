"""The Triton code generated for large matrices, tile by tile, against float64."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import randn

from helion_sinkhorn.ops.sinkhorn.large import calls, eager, launch
from helion_sinkhorn.runtime.kernel import Choice

BY_NIGHT = pytest.mark.nightly("a minute each: ten kernels are generated")

BLOCKS = {
    **dict.fromkeys(("first", "step", "sums", "turn", "back"), (4,)),
    "columns": (1, 16, 4), "columns_of_logs": (1, 16, 4, 4), "gather": (1, 16, 4), "write": (16, 32),
    "gradient": (8,),
}  # fmt: skip


def choice(name: str, rows: int) -> Choice:
    """Blocks of 16 rows and more, read 4 at a time, which leave a tail of both."""
    block = BLOCKS[name.removeprefix("sinkhorn_large_")]
    variant = (("rows", rows),) if len(block) == 1 and block[0] == 4 else ()
    return Choice(name, (("block_sizes", block), ("num_warps", 4)), variant, "a test")


@pytest.mark.parametrize(
    ("n", "m", "n_iters", "first", "sides", "dtype"),
    [
        (33, 45, 3, "rows", False, torch.float32),
        pytest.param(37, 50, 2, "cols", True, torch.float16, marks=BY_NIGHT),
        pytest.param(16, 64, 1, "rows", True, torch.bfloat16, marks=BY_NIGHT),
    ],
)
def test_values_and_gradients(n, m, n_iters, first, sides, dtype):
    choices, batch = {name: choice(name, 16) for name in calls.KERNELS}, 2
    x, dy = (randn(batch, n, m, seed=seed, scale=2).to(dtype) for seed in (0, 1))
    r, c = (randn(batch, k, seed=k).log_softmax(-1) for k in (n, m)) if sides else (None, None)
    df, dg = randn(batch, n, seed=4), randn(batch, m, seed=5)
    wide = [None if t is None else t.double() for t in (x, r, c, dy, df, dg)]
    made, true = (
        of.forward(*tensors[:3], n_iters, 0.0, first, 0.7, True, out, **own)
        for of, tensors, out, own in (
            (launch, (x, r, c), torch.float32, {"choices": choices}), (eager, wide, torch.float64, {}),
        )
    )  # fmt: skip
    own, others = (
        of.backward(*tensors[3:], *tensors[:3], *kept[3:], 0.0, first, 0.7, **more)
        for of, tensors, kept, more in (
            (launch, (x, r, c, dy, df, dg), made, {"choices": choices}), (eager, wide, true, {}),
        )
    )  # fmt: skip
    for a, b in zip((*made[:3], *own), (*true[:3], *others), strict=True):
        if b.numel():
            rounding = 2e-6 if a.dtype == torch.float32 else torch.finfo(a.dtype).eps
            assert (a.double() - b).abs().max() <= rounding * b.abs().max()


def test_bits_do_not_depend_on_the_batch():
    choices = {name: choice(name, 16) for name in calls.KERNELS}
    x = randn(2, 17, 40)
    p, *_ = launch.forward(x, None, None, 2, 0.0, "rows", 1.0, False, x.dtype, choices)
    for k in range(2):
        alone, *_ = launch.forward(x[k : k + 1], None, None, 2, 0.0, "rows", 1.0, False, x.dtype, choices)
        assert torch.equal(alone[0], p[k])
