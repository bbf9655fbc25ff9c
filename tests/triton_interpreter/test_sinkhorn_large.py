"""The Triton code generated for large matrices, tile by tile, against float64."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import randn

from helion_sinkhorn.ops.sinkhorn.large import calls, eager, launch
from helion_sinkhorn.ops.sinkhorn.large.sides import Matrices
from helion_sinkhorn.runtime.kernel import Choice

BY_NIGHT = pytest.mark.nightly("a minute each: ten kernels are generated")

ROWS = (
    "first", "step", "sums", "turn", "back", "apart_step", "apart_back", "eps_first", "eps_step", "eps_sums",
    "eps_turn", "eps_back",
)  # fmt: skip
BLOCKS = {
    **dict.fromkeys(ROWS, (4,)),
    **dict.fromkeys(("columns", "gather", "eps_columns"), (1, 16, 4)),
    **dict.fromkeys(("write", "eps_write"), (16, 32)),
    **dict.fromkeys(("wide_first", "wide_rows", "wide_gradient"), (16, 4)),
    **dict.fromkeys(("wide_logs", "wide_columns"), (8, 16)),
    "columns_of_logs": (1, 16, 4, 4), "terms": (16, 16), "gradient": (8,),
    **dict.fromkeys(("left", "right"), (32,)),
}  # fmt: skip


def choice(name: str, rows: int) -> Choice:
    """Blocks of 16 rows and more, read 4 at a time, which leave a tail of both."""
    short = name.removeprefix("sinkhorn_large_")
    variant = (("rows", rows),) if short in ROWS else ()
    return Choice(name, (("block_sizes", BLOCKS[short]), ("num_warps", 4)), variant, "a test")


@pytest.mark.parametrize(
    ("n", "m", "n_iters", "first", "sides", "dtype", "eps", "longest"),
    [
        (33, 45, 3, "rows", False, torch.float32, 0.0, 8192),
        (33, 45, 4, "rows", False, torch.float32, 1e-3, 8192),
        (21, 33, 4, "rows", True, torch.float32, 0.0, 8192),
        (21, 45, 3, "rows", True, torch.float32, 0.0, 16),
        pytest.param(37, 50, 2, "cols", True, torch.float16, 0.0, 8192, marks=BY_NIGHT),
        pytest.param(16, 64, 1, "rows", True, torch.bfloat16, 0.0, 8192, marks=BY_NIGHT),
        pytest.param(37, 50, 2, "cols", False, torch.bfloat16, 1e-6, 8192, marks=BY_NIGHT),
        pytest.param(33, 45, 4, "rows", False, torch.float32, 1e-3, 16, marks=BY_NIGHT),
        pytest.param(37, 50, 2, "cols", False, torch.float16, 1e-6, 16, marks=BY_NIGHT),
        pytest.param(16, 50, 1, "rows", False, torch.float32, 0.0, 16, marks=BY_NIGHT),
    ],
)
def test_values_and_gradients(n, m, n_iters, first, sides, dtype, eps, longest):
    of_launches = {"choices": {name: choice(name, 16) for name in calls.KERNELS}, "longest": longest}
    batch = 2
    temperature = 1.0 if eps else 0.5
    x, dy = (randn(batch, n, m, seed=seed, scale=2) for seed in (0, 1))
    if not eps:
        # potentials of thousands: what is left of them by rounding counts
        x[0] *= 750.0
    # exp(-base) and exp(g) are infinite in the padding of the second matrix
    x[1] -= 110.0 * temperature
    x[1, :, 0] -= 110.0 * temperature
    x, dy = x.to(dtype), dy.to(dtype)
    r, c = (randn(batch, k, seed=k).log_softmax(-1) for k in (n, m)) if sides else (None, None)
    df, dg = (None, None) if eps else (randn(batch, n, seed=4), randn(batch, m, seed=5))

    def results(of, dtype, x, r, c, *upstream, **own):
        matrices = Matrices(x, r, c, eps, first, temperature)
        p, f, g, *kept = of.forward(matrices, n_iters, True, dtype, **own)
        return p, f, g, *of.backward(*upstream, matrices, *kept, **own)

    given = x, r, c, dy, df, dg
    wide = [None if t is None else t.double() for t in given]
    launched = results(launch, torch.float32, *given, **of_launches)
    for a, b in zip(launched, results(eager, torch.float64, *wide), strict=True):
        if b.numel():
            # a potential below 128 is rounded by 2^-18
            rounding = 8e-6 if a.dtype == torch.float32 else torch.finfo(a.dtype).eps
            assert (a.double() - b).abs().max() <= rounding * b.abs().max()
