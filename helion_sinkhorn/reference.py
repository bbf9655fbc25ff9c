"""The specification: each operator written as its equations, in eager PyTorch, for any float dtype.

Slow and differentiable by autograd.  Tests, benchmarks and the accuracy gate run it in
float64; nothing in the package computes with it.
"""

from __future__ import annotations

import torch


def sinkhorn(
    logits: torch.Tensor,
    n_iters: int = 20,
    *,
    eps: float = 1e-6,
    form: str = "deepseek",
    first: str = "rows",
) -> torch.Tensor:
    """Normalise the rows and columns of exp(logits) in turn, `n_iters` times each.

    With R(P) = P / (rowsum(P) + eps) and C(P) = P / (colsum(P) + eps):
        "deepseek":  P = softmax(X, -1) + eps;  P = C(P);  then n_iters - 1 times P = C(R(P))
        "log":       n_iters times X <- X - logsumexp(X, -1);  X <- X - logsumexp(X, -2);  P = exp(X)
    first="cols" swaps the roles of rows and columns.  n_iters = 0 is exp(X) in both forms.

    Args:
        logits: (..., n, m), any floating dtype; all arithmetic is in that dtype.
        n_iters: row and column steps, T in the papers.
        eps: added to every denominator and once to the softmax ("deepseek" only).
        form: "deepseek" (mHC, arXiv 2512.24880, section 4.2, with the eps of DeepSeek's kernels) or "log"
            (log-domain Sinkhorn: Peyre and Cuturi, Computational Optimal Transport, section 4.4).
        first: "rows" or "cols", which side is normalised first.
    """
    if n_iters == 0:
        return logits.exp()
    lead, trail = (-1, -2) if first == "rows" else (-2, -1)
    if form == "log":
        x = logits
        for _ in range(n_iters):
            x = x - x.logsumexp(lead, keepdim=True)
            x = x - x.logsumexp(trail, keepdim=True)
        return x.exp()
    p = logits.softmax(lead) + eps
    p = p / (p.sum(trail, keepdim=True) + eps)
    for _ in range(n_iters - 1):
        p = p / (p.sum(lead, keepdim=True) + eps)
        p = p / (p.sum(trail, keepdim=True) + eps)
    return p


def dot_compress(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
    """Compress M embeddings to K by their own products: out = x (x'y + z).

    Args:
        x: (..., M, D), any floating dtype; all arithmetic is in that dtype.
        y: (..., M, K).
        z: (..., D, K); 0 if left out.

    Source: pytorch/helion#1661.
    """
    b = x.mT @ y
    return x @ (b if z is None else b + z)


def recurrent_linear_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    g: torch.Tensor | None = None,
    g_gamma: torch.Tensor | None = None,
    gk: torch.Tensor | None = None,
    gv: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attend through a state of Dk x Dv that decays and takes one rank-one update a step.

    In every head of every sequence, with the gates that are given:
        h_t = diag(exp(g_t + g_gamma + gk_t)) h_(t-1) diag(exp(gv_t)) + k_t v_t',   o_t = scale h_t' q_t

    Args:
        q, k: (B, T, H, Dk), any floating dtype; all arithmetic is in that dtype.
        v: (B, T, H, Dv).
        g, g_gamma, gk, gv: natural logarithms of decays, (B, T, H), (H,), (B, T, H, Dk), (B, T, H, Dv).
        scale: of the output, default Dk ** -0.5.
        initial_state: h before the first step, (N, H, Dk, Dv), default 0; N is B without cu_seqlens.
        output_final_state: return (o, h after the last step) and not o alone.
        reverse: walk each sequence from its last step to its first.
        cu_seqlens: (N + 1,) offsets from 0 to T: B is 1, and sequence n is steps [offset n, offset n + 1).

    Source: Yang et al., Gated Linear Attention Transformers (arXiv 2312.06635), section 3.
    """
    scale = q.size(-1) ** -0.5 if scale is None else scale
    offsets = [0, q.size(1)] if cu_seqlens is None else cu_seqlens.tolist()
    outputs, states = [], []
    for n in range(len(offsets) - 1):
        h = q.new_zeros(q.size(0), q.size(2), q.size(3), v.size(3))
        if initial_state is not None:
            h = initial_state if cu_seqlens is None else initial_state[n : n + 1]
        steps = range(offsets[n], offsets[n + 1])
        o = {}
        for t in reversed(steps) if reverse else steps:
            if g is not None:
                h = h * g[:, t, :, None, None].exp()
            if g_gamma is not None:
                h = h * g_gamma[:, None, None].exp()
            if gk is not None:
                h = h * gk[:, t, :, :, None].exp()
            if gv is not None:
                h = h * gv[:, t, :, None, :].exp()
            h = h + k[:, t, :, :, None] * v[:, t, :, None, :]
            o[t] = scale * (q[:, t, :, :, None] * h).sum(-2)
        outputs += [o[t] for t in steps]
        states.append(h)
    o = torch.stack(outputs, 1) if outputs else v.new_zeros(v.shape)
    return (o, torch.cat(states)) if output_final_state else o
