"""The recurrence, token by token, with a call wherever a kernel rounds."""

from __future__ import annotations

import torch

from helion_sinkhorn.lab.linear_attention.model import Errors, Named, Span


def outer(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return k.unsqueeze(-1) * v.unsqueeze(-2)


def step_by_step(x: Span, rounding: Errors) -> Named:
    """o, end and the gradients of q, k, v, rows, columns, start, one step after another."""
    # expanded, for errors of their own in every sample
    rows, columns = (
        None if w is None else rounding.exp(w.expand(*x.q.shape[:-2], *w.shape[-2:])).to(x.q.dtype)
        for w in (x.rows, x.columns)
    )

    def decayed(h: torch.Tensor, t: int) -> torch.Tensor:
        if rows is not None:
            h = rounding(h * rows[..., t, :].unsqueeze(-1))
        return h if columns is None else rounding(h * columns[..., t, :].unsqueeze(-2))

    steps = range(x.q.size(-2))
    q, k, v, do = (tensor.unbind(-2) for tensor in (x.q, x.k, x.v, x.do))
    h, o, dq, befores = x.start, [], [], []
    for t in steps:
        befores.append(decayed(h, t))
        h = rounding.state(befores[t] + rounding(outer(k[t], v[t])))
        o.append(rounding(x.scale * rounding.sum(q[t].unsqueeze(-1) * h, -2)))
        dq.append(rounding(x.scale * rounding.sum(do[t].unsqueeze(-2) * h, -1)))
    dh = x.dend
    dk, dv, dgk, dgv = ([None] * len(steps) for _ in range(4))
    for t in reversed(steps):
        dh = rounding.state(dh + rounding(outer(q[t], x.scale * do[t]), 2.0))
        dk[t], dv[t] = (
            rounding.sum(dh * y, a) for y, a in ((v[t].unsqueeze(-2), -1), (k[t].unsqueeze(-1), -2))
        )
        meeting = rounding.gathered(dh * befores[t])
        dgk[t], dgv[t] = rounding.sum(meeting, -1), rounding.sum(meeting, -2)
        dh = decayed(dh, t)
    vectors = {
        "o": (o, x.v),
        "dq": (dq, x.q),
        "dk": (dk, x.k),
        "dv": (dv, x.v),
        "dgk": (dgk, x.k),
        "dgv": (dgv, x.v),
    }
    found = {name: torch.stack(parts, -2) if parts else like for name, (parts, like) in vectors.items()}
    return {**found, "end": h, "dinitial_state": dh}
