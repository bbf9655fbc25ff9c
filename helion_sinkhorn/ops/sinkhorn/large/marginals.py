"""What `sinkhorn` takes beside the logits in its log form: temperature, marginals and lengths."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from helion_sinkhorn.ops.sinkhorn.large import torch_op
from helion_sinkhorn.runtime.checks import DTYPES, check_finite, check_same_device, type_of
from helion_sinkhorn.runtime.pieces import computing

INTEGERS = torch.int64, torch.int32
LOGARITHMS, COUNTS = "a floating-point tensor of logarithms", "a tensor of int64 or int32"
SUMS_AGREE = 1e-3
"""By how much of them the sums of rows and of columns may differ, and 2^-4 of marginals of 16 bits: their
rounding."""


@dataclass(frozen=True)
class Transport:
    """The options of the log form as they are given, and whether any of them is."""

    temperature: float = 1.0
    log_rows: torch.Tensor | None = None
    log_columns: torch.Tensor | None = None
    row_lengths: torch.Tensor | None = None
    column_lengths: torch.Tensor | None = None

    @property
    def has_marginals(self) -> bool:
        """Whether more than the temperature is asked for."""
        given = self.log_rows, self.log_columns, self.row_lengths, self.column_lengths
        return any([t is not None for t in given])

    def check(self, logits: torch.Tensor, form: str, backward: object) -> None:
        """Raise TypeError or ValueError unless a call on such logits takes these options."""
        if form != "log":
            raise ValueError(
                f"temperature, marginals and lengths are options of form='log', and form is {form!r}; "
                "pass form='log', or leave them out"
            )
        if backward != "exact" and self.has_marginals:
            raise ValueError("backward='implicit' takes no marginals and no lengths; 'exact' does")
        check_finite("temperature", self.temperature, "a positive float")
        if not self.temperature > 0:
            raise ValueError(f"temperature is {float(self.temperature)}; pass a positive float")
        *lead, n, m = logits.shape
        sides = ("row", self.log_rows, self.row_lengths, n), ("col", self.log_columns, self.column_lengths, m)
        for side, logarithms, lengths, lines in sides:
            if logarithms is not None:
                _check_one(f"log_{side}_marginals", logarithms, DTYPES, LOGARITHMS, (*lead, lines), logits)
            if lengths is not None:
                _check_one(f"{side}_lengths", lengths, INTEGERS, COUNTS, (*lead,), logits)
                _check_lengths(f"{side}_lengths", lengths, lines)


def _check_one(
    name: str,
    x: object,
    dtypes: tuple[torch.dtype, ...],
    accepted: str,
    shape: tuple[int, ...],
    logits: torch.Tensor,
) -> None:
    if not isinstance(x, torch.Tensor) or x.dtype not in dtypes:
        what = f"of dtype {x.dtype}" if isinstance(x, torch.Tensor) else type_of(x)
        raise TypeError(f"{name} is {what}; pass {accepted}")
    check_same_device(name, x, "logits", logits)
    behind = shape[len(shape) - x.dim() :] if x.dim() else ()
    if x.dim() > len(shape) or any(k not in (1, size) for k, size in zip(x.shape, behind, strict=True)):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; pass one that broadcasts to {shape}")


def _check_lengths(name: str, t: torch.Tensor, most: int) -> None:
    """Raise ValueError unless a CPU's lengths are from 1 to `most`; a GPU is not waited for."""
    if t.device.type != "cpu" or not t.numel() or not torch_op.call.is_eager(t):
        return
    for k in (int(t.amin()), int(t.amax())):
        if not 1 <= k <= most:
            raise ValueError(f"{name} has {k}; pass lengths from 1 to {most}")


def prepared(
    logits: torch.Tensor, of: Transport, first: str
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """(logits, -inf outside the lengths; the logarithms of both marginals (..., n) and (..., m), or None).

    A side without marginals shares the mass of the other one equally.  Without any, the side that is
    normalised first has m / n a line and the other one 1, each counted by its lengths: what iterations
    without marginals make.
    """
    if not of.has_marginals:
        return logits, None, None
    lead, (n, m), dtype = logits.shape[:-2], logits.shape[-2:], computing(logits.dtype)
    inside = [_inside(lengths, k, lead) for lengths, k in ((of.row_lengths, n), (of.column_lengths, m))]
    logs: list[torch.Tensor | None] = []
    for t, own, k in zip((of.log_rows, of.log_columns), inside, (n, m), strict=True):
        if t is not None:
            t = t.expand(*lead, k)
            t = t if own is None else t.masked_fill(~own, -torch.inf)
        logs.append(t)
    counts = [
        logits.new_full((*lead, 1), k, dtype=dtype) if own is None else own.sum(-1, keepdim=True).to(dtype)
        for own, k in zip(inside, (n, m), strict=True)
    ]
    if logs == [None, None]:
        # whole lines of the trail side: its number of lines is the mass
        mass = counts[1 if first == "rows" else 0].log()
    else:
        mass = next(t for t in logs if t is not None).to(dtype).logsumexp(-1, keepdim=True)
    for side, (t, own, k) in enumerate(zip(logs, inside, (n, m), strict=True)):
        if t is None:
            equal = (mass - counts[side].log()).expand(*lead, k)
            logs[side] = equal if own is None else equal.masked_fill(~own, -torch.inf)
    rows, columns = inside
    if rows is not None:
        logits = logits.masked_fill(~rows.unsqueeze(-1), -torch.inf)
    if columns is not None:
        logits = logits.masked_fill(~columns.unsqueeze(-2), -torch.inf)
    if of.log_rows is not None and of.log_columns is not None and torch_op.call.is_eager(logits, *logs):
        _check_sums(*logs)
    return logits, *logs


def _inside(lengths: torch.Tensor | None, k: int, lead: torch.Size) -> torch.Tensor | None:
    """(..., k) whether a line is one of the matrix."""
    if lengths is None:
        return None
    return (torch.arange(k, device=lengths.device) < lengths.unsqueeze(-1)).expand(*lead, k)


def _check_sums(log_rows: torch.Tensor, log_columns: torch.Tensor) -> None:
    """Raise ValueError where the sides of a matrix share out different masses; a GPU is not waited for."""
    if log_rows.device.type != "cpu" or not log_rows.numel():
        return
    a, b = (t.detach().to(computing(t.dtype)).logsumexp(-1) for t in (log_rows, log_columns))
    narrow = min(t.dtype.itemsize for t in (log_rows, log_columns)) < 4
    wrong = (a - b).abs() > (2**-4 if narrow else SUMS_AGREE)
    if wrong.any():
        k = int(wrong.flatten().nonzero()[0])
        r, c = (float(t.flatten()[k].exp()) for t in (a, b))
        raise ValueError(
            f"exp(log_row_marginals) sums to {r:.6g} and exp(log_col_marginals) to {c:.6g} in matrix {k}; "
            "no matrix has both: pass marginals of equal sums, or only one of them"
        )


def run(
    logits: torch.Tensor, of: Transport, n_iters: int, eps: float, first: str, implementation: str,
    out_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(P, f, g): see `large.torch_op`."""
    x, log_rows, log_columns = prepared(logits, of, first)
    tensors = [t for t in (x, log_rows, log_columns) if t is not None]
    keep = torch.is_grad_enabled() and any([t.requires_grad for t in tensors])
    apply = torch_op.SinkhornLarge.apply if torch_op.differentiates(*tensors) else torch_op.call
    p, f, g, *_ = apply(
        x, log_rows, log_columns, n_iters, eps, first, float(of.temperature), keep, implementation, out_dtype
    )
    return p, f, g
