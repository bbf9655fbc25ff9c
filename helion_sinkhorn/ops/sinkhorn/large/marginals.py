"""The options of `sinkhorn` in its log form: temperature, marginals and lengths."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from helion_sinkhorn.ops.sinkhorn.large import torch_op
from helion_sinkhorn.ops.sinkhorn.large.ranks import ALONE, Ranks
from helion_sinkhorn.runtime.checks import DTYPES, check_finite, check_same_device, type_of
from helion_sinkhorn.runtime.pieces import COMPUTING
from helion_sinkhorn.runtime.tokens import has_dtensor

INTEGERS = torch.int64, torch.int32
LEAST_SHARE = {torch.float32: -80.0, torch.float64: -600.0}
"""The logarithm of the smallest share of a side's sum that counts, whose inverse is in range, by dtype."""
TEMPERATURES = 1e-37, 1e37
"""The smallest and largest temperature: float32 has both and their inverses."""
LOGARITHMS, COUNTS = "a floating-point tensor of logarithms", "a tensor of int64 or int32"
SUMS_AGREE = 1e-3
"""How much the sums of rows and of columns may differ, relative to them.

It is 2^-4 for marginals of 16 bits, whose rounding is as large.
"""


@dataclass(frozen=True)
class Transport:
    """The options of the log form as they are given."""

    temperature: float = 1.0
    log_rows: torch.Tensor | None = None
    log_columns: torch.Tensor | None = None
    row_lengths: torch.Tensor | None = None
    column_lengths: torch.Tensor | None = None

    @property
    def has_marginals(self) -> bool:
        """Whether marginals or lengths are given."""
        given = self.log_rows, self.log_columns, self.row_lengths, self.column_lengths
        return any([t is not None for t in given])

    def check(self, logits: torch.Tensor, form: str, backward: object) -> None:
        """Raise TypeError or ValueError unless a call on these logits takes these options."""
        if form != "log":
            raise ValueError(
                f"temperature, marginals and lengths are options of form='log', and form is {form!r}; "
                "pass form='log', or leave them out"
            )
        if backward != "exact" and self.has_marginals:
            raise ValueError("backward='implicit' takes no marginals and no lengths; pass 'exact'")
        least, most = TEMPERATURES
        accepted = f"a positive float from {least} to {most}"
        check_finite("temperature", self.temperature, accepted)
        if not least <= self.temperature <= most:
            raise ValueError(f"temperature is {float(self.temperature)}; pass {accepted}")
        given = logits, self.log_rows, self.log_columns, self.row_lengths, self.column_lengths
        if self.has_marginals and has_dtensor(*given):
            raise NotImplementedError(
                "marginals and lengths take no DTensors; call on the .to_local() of all tensors, logits "
                "sharded before their last two dimensions"
            )
        *lead, n, m = logits.shape
        sides = ("row", self.log_rows, self.row_lengths, n), ("col", self.log_columns, self.column_lengths, m)
        for side, logarithms, lengths, lines in sides:
            if logarithms is not None:
                _check_one(f"log_{side}_marginals", logarithms, DTYPES, LOGARITHMS, (*lead, lines), logits)
            if lengths is not None:
                _check_one(f"{side}_lengths", lengths, INTEGERS, COUNTS, (*lead,), logits)
                _check_lengths(f"{side}_lengths", lengths, lines)

    def check_shared(self) -> None:
        """Raise ValueError unless calls whose rows are shared by several ranks take these options."""
        if self.row_lengths is not None or self.column_lengths is not None:
            raise ValueError("row_lengths and col_lengths need whole matrices; leave out group")
        if (self.log_rows is None) != (self.log_columns is None):
            given, missing = ("row", "col") if self.log_columns is None else ("col", "row")
            raise ValueError(
                f"log_{given}_marginals is given, and log_{missing}_marginals is not; pass both where ranks "
                "share the rows"
            )


def _check_one(
    name: str, x: object, dtypes: tuple[torch.dtype, ...], accepted: str, shape: tuple[int, ...],
    logits: torch.Tensor,
) -> None:  # fmt: skip
    if not isinstance(x, torch.Tensor) or x.dtype not in dtypes:
        what = f"of dtype {x.dtype}" if isinstance(x, torch.Tensor) else type_of(x)
        raise TypeError(f"{name} is {what}; pass {accepted}")
    check_same_device(name, x, "logits", logits)
    behind = shape[len(shape) - x.dim() :] if x.dim() else ()
    if x.dim() > len(shape) or any(k not in (1, size) for k, size in zip(x.shape, behind, strict=True)):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; pass one that broadcasts to {shape}")


def _check_lengths(name: str, t: torch.Tensor, most: int) -> None:
    """Raise ValueError unless lengths on a CPU are from 1 to `most`; on a GPU the check would wait for it."""
    if t.device.type != "cpu" or not t.numel() or not torch_op.call.is_eager(t):
        return
    for k in (int(t.amin()), int(t.amax())):
        if not 1 <= k <= most:
            raise ValueError(f"{name} has {k}; pass lengths from 1 to {most}")


def prepared(
    logits: torch.Tensor, of: Transport, first: str, rows: int = 0
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """(logits, the logarithms of both marginals, (..., n) and (..., m), or None).

    Logits are -inf in lines without mass and outside the lengths.

    A side without marginals shares the mass of the other side equally.  Without any marginals, each line of
    the side that is normalised first gets m / n and each line of the other side 1, as in iterations without
    marginals; n and m are counted by the lengths.  Ranks share `rows` rows, and give both marginals, or none.
    """
    if not of.has_marginals:
        return logits, None, None
    lead, (n, m), dtype = logits.shape[:-2], logits.shape[-2:], COMPUTING[logits.dtype]
    inside = [_inside(lengths, k, lead) for lengths, k in ((of.row_lengths, n), (of.column_lengths, m))]
    logs: list[torch.Tensor | None] = []
    shared_mass = _log_mass(of.log_columns.detach().to(dtype)) if rows else None
    for t, own, k in zip((of.log_rows, of.log_columns), inside, (n, m), strict=True):
        if t is not None:
            t = t.expand(*lead, k)
            t = _of_share(t if own is None else t.masked_fill(~own, -torch.inf), dtype, shared_mass)
        logs.append(t)
    counts = [
        logits.new_full((*lead, 1), k, dtype=dtype) if own is None else own.sum(-1, keepdim=True).to(dtype)
        for own, k in zip(inside, (n, m), strict=True)
    ]
    if logs == [None, None]:
        # each line of the trail side has 1, so its number of lines is the mass
        mass = counts[1 if first == "rows" else 0].log()
    else:
        mass = _log_mass(next(t for t in logs if t is not None).to(dtype))
    for side, (t, own, k) in enumerate(zip(logs, inside, (n, m), strict=True)):
        if t is None:
            equal = (mass - counts[side].log()).expand(*lead, k)
            logs[side] = equal if own is None else equal.masked_fill(~own, -torch.inf)
    given = of.log_rows, of.log_columns
    logits = _without(logits, *(
        None if marginal is None and own is None else t == -torch.inf
        for marginal, own, t in zip(given, inside, logs, strict=True)
    ))  # fmt: skip
    both = of.log_rows is not None and of.log_columns is not None
    if both and not rows and torch_op.call.is_eager(logits, *logs):
        _check_sums(*logs)
    return logits, *logs


def _log_mass(t: torch.Tensor) -> torch.Tensor:
    """logsumexp, (..., 1), without a gradient where there is no mass."""
    none = (t == -torch.inf).all(-1, keepdim=True)
    return _filled(_filled(t, none, 0.0).logsumexp(-1, keepdim=True), none)


def _of_share(t: torch.Tensor, dtype: torch.dtype, mass: torch.Tensor | None) -> torch.Tensor:
    """Logarithms of a marginal, -inf where its share of the mass is below LEAST_SHARE.

    Unless the logarithm of the mass is given, it is that of the sum of all entries.
    """
    wide = t.detach().to(dtype)
    return _filled(t, wide < (_log_mass(wide) if mass is None else mass) + LEAST_SHARE[dtype])


def _without(logits: torch.Tensor, rows: torch.Tensor | None, columns: torch.Tensor | None) -> torch.Tensor:
    """Logits, -inf in rows (..., n) and columns (..., m) without mass, which must not be maxima of others."""
    lines = (rows, -1), (columns, -2)
    where = [t.unsqueeze(axis) for t, axis in lines if t is not None and not _is_empty(t)]
    # one copy for both
    return logits.masked_fill(functools.reduce(torch.logical_or, where), -torch.inf) if where else logits


def _is_empty(where: torch.Tensor) -> bool:
    """Whether nothing is to be filled, which only a CPU can say without a wait."""
    return where.device.type == "cpu" and torch_op.call.is_eager(where) and not where.any()


def _filled(t: torch.Tensor, where: torch.Tensor, value: float = -torch.inf) -> torch.Tensor:
    """t filled with `value` where `where`; a copy only if something is to be filled."""
    return t if _is_empty(where) else t.masked_fill(where, value)


def _inside(lengths: torch.Tensor | None, k: int, lead: torch.Size) -> torch.Tensor | None:
    """Whether each line belongs to the matrix, (..., k)."""
    if lengths is None:
        return None
    return (torch.arange(k, device=lengths.device) < lengths.unsqueeze(-1)).expand(*lead, k)


def _check_sums(log_rows: torch.Tensor, log_columns: torch.Tensor) -> None:
    """Raise ValueError where the two sides of a matrix have different masses; on a GPU it would wait."""
    if log_rows.device.type != "cpu" or not log_rows.numel():
        return
    a, b = (t.detach().to(COMPUTING[t.dtype]).logsumexp(-1) for t in (log_rows, log_columns))
    narrow = min(t.dtype.itemsize for t in (log_rows, log_columns)) < 4
    # without mass on both sides the difference is NaN
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
    out_dtype: torch.dtype, ranks: Ranks = ALONE,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(P, f, g) of `large.torch_op`."""
    x, log_rows, log_columns = prepared(logits, of, first, ranks.lines)
    tensors = [t for t in (x, log_rows, log_columns) if t is not None]
    keep = torch.is_grad_enabled() and any([t.requires_grad for t in tensors])
    p, f, g, *_ = torch_op.apply(
        x, log_rows, log_columns, n_iters, eps, first, float(of.temperature), keep, implementation, out_dtype,
        [*ranks.groups], ranks.lines,
    )  # fmt: skip
    return p, f, g
