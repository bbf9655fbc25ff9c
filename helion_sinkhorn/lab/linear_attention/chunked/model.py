"""The recurrence in chunks, with a call wherever a kernel rounds."""

from __future__ import annotations

import math

import torch

from helion_sinkhorn.lab.linear_attention.model import FORGOTTEN, Errors, Named, Span


def in_chunks(x: Span, rounding: Errors) -> Named:
    """The results of `step_by_step` without columns, by the chunks of docs/dev/linear_attention.md."""
    steps, chunk, least = x.q.size(-2), rounding.chunk, rounding.least
    half, missing = chunk // 2, -steps % chunk
    ends = (missing, 0) if x.backwards else (0, missing)

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(tensor, (0, 0, *ends)).unflatten(-2, (-1, chunk))

    def joined(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.flatten(-3, -2)[..., ends[0] : ends[0] + steps, :]

    def exp(w: torch.Tensor) -> torch.Tensor:
        # expanded, so that every sample gets its own errors
        return rounding.exp(w.expand(*q.shape[:-2], *w.shape[-2:]), chunk).to(q.dtype)

    q, k, v, do = (cut(tensor) for tensor in (x.q * x.scale, x.k, x.v, x.do))
    w = x.q.new_zeros(steps, 1) if x.rows is None else x.rows.clamp(min=FORGOTTEN)
    upto = cut(w.double()).cumsum(-2)
    whole = upto[..., -1:, :]
    # of a query and of a key, relative to the middle of the chunk
    far = upto - upto[..., half - 1 : half, :]
    query, key = (y.clamp(math.log(least), -math.log(least)) for y in (far, -far))
    xs, ys = q * exp(query), k * exp(key)
    before, after, decay = exp(upto - query), exp(whole - upto - key), exp(whole).squeeze(-2).unsqueeze(-1)
    qs, ks = (
        rounding.operand(rounding(xs * before), "queries"),
        rounding.operand(rounding(ys * after), "keys"),
    )
    near, xs, ys = ys, rounding.operand(xs, "pairs"), rounding.operand(ys, "pairs")
    # of a pair, what its two factors leave out
    rest = upto.unsqueeze(-2) - upto.unsqueeze(-3) - query.unsqueeze(-2) - key.unsqueeze(-3)
    lower = torch.ones(chunk, chunk, device=q.device, dtype=torch.bool).tril()
    rest = rest.masked_fill(~lower.unsqueeze(-1), 0).exp().to(x.q.dtype)
    a = torch.stack(
        [rounding.sum(xs[..., i : i + 1, :] * ys * rest[..., i, :, :], -1) for i in range(chunk)], -2
    )
    a = rounding.operand(a.where(lower, 0.0), "scores")

    def walked(s, xs, ys, a, v, order):
        """(outputs, the state before every chunk as an operand, the last state)."""
        out, states = {}, {}
        for c in order:
            states[c] = rounding.operand(s, "states")
            out[c] = rounding(
                rounding.product(xs[..., c, :, :], states[c])
                + rounding.product(a[..., c, :, :], v[..., c, :, :])
            )
            taken = rounding.product(ys[..., c, :, :].mT, v[..., c, :, :])
            s = rounding.state(rounding(s * decay[..., c, :, :]) + taken)
        return *(torch.stack([y[c] for c in sorted(y)], -3) for y in (out, states)), s

    order = range(q.size(-3))
    o, h, end = walked(x.start, qs, ks, a, v, order)
    dv, dh, dstart = walked(x.dend, ks, qs, a.mT, do, order[::-1])
    da = rounding.operand(rounding.product(do, v.mT).where(lower, 0.0), "pairs")
    dq, dk = rounding(rounding.product(do, h.mT) * before), rounding(rounding.product(v, dh.mT) * after)

    def summed(terms: torch.Tensor) -> torch.Tensor:
        """Sums up to each row."""
        return rounding.running(rounding.gathered(terms), chunk).cumsum(-2)

    # the gradient of a gate from pairs of steps of which one or both are outside of the chunk
    dw = decay.squeeze(-1) * rounding.sum(h * dh, -1)
    dw = dw.unsqueeze(-2) + summed((q * exp(query) * dq).flip(-2)).flip(-2)
    later = summed(near * dk)
    dw[..., 1:, :] += later[..., :-1, :]
    for i in range(chunk):
        pair = rounding.running(da[..., i, :].unsqueeze(-1) * rest[..., i, :, :], chunk)
        within = pair * ys
        dq[..., i, :] += within.sum(-2)
        dk += pair * xs[..., i : i + 1, :]
        # from pairs within the chunk: of step i and all steps before the gate
        dw[..., 1 : i + 1, :] += summed(within * xs[..., i : i + 1, :])[..., :i, :]
    dq, dk, dw = rounding(dq * exp(query)), rounding(dk * exp(key)), rounding(dw)
    found = {"o": o, "dv": dv, "dq": x.scale * dq, "dk": dk, "dgk": dw}
    return {name: joined(y) for name, y in found.items()} | {"end": end, "dinitial_state": dstart}
