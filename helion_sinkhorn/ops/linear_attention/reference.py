"""The specification of recurrent linear attention: one step after another, in PyTorch."""

from __future__ import annotations

import torch


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
    """Attend through a state of Dk x Dv that decays and takes one rank-one update in each step.

    In every head of every sequence, with the gates that are given:
        h_t = diag(exp(g_t + g_gamma + gk_t)) h_(t-1) diag(exp(gv_t)) + k_t v_t',   o_t = scale h_t' q_t

    Args:
        q, k: (B, T, H, Dk), any floating dtype; all arithmetic is in that dtype.
        v: (B, T, H, Dv).
        g, g_gamma, gk, gv: natural logarithms of decays, (B, T, H), (H,), (B, T, H, Dk), (B, T, H, Dv).
        scale: the factor of the output, by default Dk ** -0.5.
        initial_state: h before the first step, (N, H, Dk, Dv), default 0; N is B without cu_seqlens.
        output_final_state: return (o, h after the last step) and not only o.
        reverse: walk each sequence from its last step to its first.
        cu_seqlens: (N + 1,) ascending, in 0 .. T: B is 1, sequence n is steps [offset n, offset n + 1).
            Steps before the first offset and from the last one on belong to no sequence; o is 0 there.

    Source: Yang et al., Gated Linear Attention Transformers (arXiv 2312.06635), section 3.
    """
    scale = q.size(-1) ** -0.5 if scale is None else scale
    offsets = [0, q.size(1)] if cu_seqlens is None else cu_seqlens.tolist()
    o, states = {}, []
    for n in range(len(offsets) - 1):
        h = q.new_zeros(q.size(0), q.size(2), q.size(3), v.size(3))
        if initial_state is not None:
            h = initial_state if cu_seqlens is None else initial_state[n : n + 1]
        steps = range(offsets[n], offsets[n + 1])
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
        states.append(h)
    nothing = v.new_zeros(v.size(0), *v.shape[2:])
    o = torch.stack([o.get(t, nothing) for t in range(v.size(1))], 1) if o else torch.zeros_like(v)
    return (o, torch.cat(states)) if output_final_state else o
