"""Functions of other projects' code, as calls of `sinkhorn`: SuperGlue's, DINOv2's and Megatron-core's."""

from __future__ import annotations

import math
from typing import Any

import torch

from helion_sinkhorn.ops.sinkhorn.api import MOST_ITERS, sinkhorn
from helion_sinkhorn.ops.sinkhorn.potentials import sinkhorn_potentials
from helion_sinkhorn.runtime.checks import check_int, check_tensor, type_of
from helion_sinkhorn.runtime.pieces import COMPUTING


def log_optimal_transport(scores: torch.Tensor, bin_score: torch.Tensor, iters: int) -> torch.Tensor:
    """The logarithm of SuperGlue's transport plan, between points that may also match a dustbin.

    Args:
        scores: (..., n, m), float32, bfloat16, float16 or float64.
        bin_score: the score of a point with the dustbin of the other side, and of the two dustbins: a tensor
            that broadcasts to (..., 1, 1).
        iters: T, at least 1.

    Returns:
        (..., n + 1, m + 1), with the dustbins last.  Rows and columns of points sum to 1, the row of the
        dustbin to m and its column to n; the columns sum exactly.  Both arguments have exact gradients.

    Raises:
        TypeError, ValueError: bin_score is no tensor or of another shape; and as `sinkhorn_potentials`.

    Source: Sarlin et al., SuperGlue (arXiv 1911.11763); the function of that name in its code, in
        transformers and in kornia.
    """
    iters = check_int("iters", iters, 1, MOST_ITERS)
    check_tensor("scores", scores, "(..., n, m)")
    if not isinstance(bin_score, torch.Tensor):
        raise TypeError(f"bin_score is {type_of(bin_score)}; pass a tensor, torch.tensor(1.0)")
    *lead, n, m = scores.shape
    if bin_score.dim() > len(lead) + 2 or any(k != 1 for k in bin_score.shape[-2:]):
        raise ValueError(
            f"bin_score has shape {tuple(bin_score.shape)}; pass one that broadcasts to {(*lead, 1, 1)}"
        )
    # the kernels take the last column of 1025 apart, and do not compute it as 2048
    right, below = bin_score.expand(*lead, n, 1), bin_score.expand(*lead, 1, m + 1)
    x = torch.cat([torch.cat([scores, right], -1), below], -2)
    log_r, log_c = (x.new_zeros(k, dtype=COMPUTING[x.dtype]) for k in (n + 1, m + 1))
    # an assignment would copy the number from the host, which waits for the GPU and cannot be captured
    log_r[-1:].fill_(math.log(m))
    log_c[-1:].fill_(math.log(n))
    f, g = sinkhorn_potentials(x, iters, log_row_marginals=log_r, log_col_marginals=log_c)
    return (x + f.unsqueeze(-1) + g.unsqueeze(-2)).to(x.dtype)


@torch.no_grad()
def sinkhorn_knopp_teacher(
    teacher_output: torch.Tensor, teacher_temp: float, n_iterations: int = 3, *, group: Any = None
) -> torch.Tensor:
    """The targets of DINOv2, iBOT and SwAV: samples distributed equally over prototypes.

    The exponentials are relative to the largest ones; the original overflows from logits of 88 times the
    temperature on.

    Args:
        teacher_output: (samples, prototypes) logits.
        teacher_temp: the logits are divided by it.
        n_iterations: how often prototypes and then samples are normalised, at least 1.
        group: a torch.distributed.ProcessGroup whose ranks each have at least one sample.  The original takes
            all processes, which are torch.distributed.group.WORLD.

    Returns:
        A tensor like teacher_output, in float32, or float64 for float64: each sample sums to 1.  It has no
        gradient.

    Raises:
        TypeError, ValueError: as `sinkhorn`.

    Source: Caron et al., SwAV (arXiv 2006.09882); the function of that name in dinov2's code.
    """
    check_tensor("teacher_output", teacher_output, "(samples, prototypes)")
    return sinkhorn(
        teacher_output, check_int("n_iterations", n_iterations, 1, MOST_ITERS), form="log", first="cols",
        temperature=teacher_temp, out_dtype=COMPUTING[teacher_output.dtype], group=group,
    )  # fmt: skip


@torch.no_grad()
def sinkhorn_router(logits: torch.Tensor, n_iters: int = 8) -> torch.Tensor:
    """Scores of a mixture of experts that give each expert as many tokens, as Megatron-core's `sinkhorn`.

    Megatron-core iterates until the mean change of a vector is below 1e-4, which it reads back each time.
    This function makes a fixed number of iterations and waits for nothing (docs/large.md says how many).

    Args:
        logits: (tokens, experts).
        n_iters: the number of iterations, at least 1.

    Returns:
        A tensor like logits, in float32, or float64 for float64: columns sum to 1 / experts, and row sums
        approach 1 / tokens.  It has no gradient, since routers take the largest scores.

    Raises:
        TypeError, ValueError: as `sinkhorn`.

    Source: Clark et al., Unified Scaling Laws for Routed Language Models (arXiv 2202.01169), appendix B.
    """
    n_iters = check_int("n_iters", n_iters, 1, MOST_ITERS)
    check_tensor("logits", logits, "(tokens, experts)")
    p = sinkhorn(logits, n_iters, form="log", out_dtype=COMPUTING[logits.dtype])
    return p.div_(logits.size(-1))
