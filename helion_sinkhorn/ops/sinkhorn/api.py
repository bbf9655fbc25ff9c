"""sinkhorn(...): the contract, its checks, and which implementation computes a call."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch

from helion_sinkhorn.ops.sinkhorn import distributed, torch_op
from helion_sinkhorn.ops.sinkhorn.implicit import torch_op as implicit_op
from helion_sinkhorn.ops.sinkhorn.implicit.systems import Implicit
from helion_sinkhorn.ops.sinkhorn.large import marginals
from helion_sinkhorn.ops.sinkhorn.large.eager import SMALL, is_large, resolve_large
from helion_sinkhorn.ops.sinkhorn.large.marginals import Transport
from helion_sinkhorn.ops.sinkhorn.scaling import MOST_DRIFT, SMALLEST_EPS, drifts
from helion_sinkhorn.runtime.checks import (
    as_int,
    check_implementation,
    check_int,
    check_number,
    check_option,
    check_out_dtype,
    check_tensor,
    implementation_for,
)
from helion_sinkhorn.runtime.pieces import COMPUTING

FORMS = ("deepseek", "log")
FIRSTS = ("rows", "cols")
BACKWARDS = ("exact", "implicit")
DEFAULT_EPS = 1e-6
MOST_ITERS = 1 << 20
"""The most iterations: far more than any matrix needs to converge, so that every call ends."""
EPS_ACCEPTED = f"0 or a float from {SMALLEST_EPS} to 1"
KERNEL_LARGEST = SMALL
"""Most rows or columns of a matrix that the kernels take."""


class Options(NamedTuple):
    """The options of `sinkhorn` that are checked together and decide which implementation runs."""

    n_iters: int = 20
    eps: float = DEFAULT_EPS
    form: str = "deepseek"
    first: str = "rows"
    backward: str | Implicit = "exact"
    out_dtype: torch.dtype | None = None


def sinkhorn(
    logits: torch.Tensor,
    n_iters: int = 20,
    *,
    eps: float = DEFAULT_EPS,
    form: str = "deepseek",
    first: str = "rows",
    backward: str | Implicit = "exact",
    implementation: str = "auto",
    out_dtype: torch.dtype | None = None,
    temperature: float = 1.0,
    log_row_marginals: torch.Tensor | None = None,
    log_col_marginals: torch.Tensor | None = None,
    row_lengths: torch.Tensor | None = None,
    col_lengths: torch.Tensor | None = None,
    group: Any = None,
) -> torch.Tensor:
    """Normalise the rows and columns of exp(logits) in turn, `n_iters` times each.

    With R(P) = P / (rowsum(P) + eps) and C(P) = P / (colsum(P) + eps):
        "deepseek":  P = softmax(X, -1) + eps;  P = C(P);  then n_iters - 1 times P = C(R(P))
        "log":       n_iters times X <- X - logsumexp(X, -1);  X <- X - logsumexp(X, -2);  P = exp(X)
    The log form takes marginals r and c and a temperature t: P = exp(X / t + f + g), and a row step is
    f <- log r - logsumexp(X / t + g, -1), a column step g <- log c - logsumexp(X / t + f, -2), from g = 0.
    By default the gradient is the exact adjoint of these iterations, eps terms included, whether they have
    converged or not.  Only the logits are kept for it; with marginals, and beyond 128 rows or columns (65536
    entries on a CPU), two vectors of each iteration are kept too.

    Args:
        logits: (..., n, m) natural logarithms, float32, bfloat16, float16 or float64, any layout.
            -inf masks an entry.
        n_iters: T, the number of row and of column steps, at most 2^20; 0 returns exp(logits).
        eps: added to each denominator, and once to the softmax; 0, or 1e-12 to 1.  The log form has no eps
            and accepts only 0 and the default.
        form: "deepseek" (mHC) or "log".
        first: "rows" or "cols", the side normalised first; "cols" is the transpose of "rows".
        backward: "exact", or "implicit": an approximate gradient, computed from P only as if P were a fixed
            point.  It is right where the iteration has converged, and may be wrong by any amount elsewhere
            (docs/sinkhorn.md).  `Implicit(system=..., solver=...)` chooses the equations and the solver.
        implementation: "auto" takes the Helion kernels on a GPU and vectorised PyTorch elsewhere.  It also
            takes PyTorch for float64, for smaller rectangular matrices with a large eps, and, beyond 128 rows
            or columns or with marginals, where the lines normalised first are shorter than 32.  "helion" and
            "pytorch" ask for one of them.
        out_dtype: the dtype of the result, by default the logits' dtype.
        temperature: the logits are divided by it, a float from 1e-37 to 1e37.  This option and those below
            are for the log form with the exact gradient.
        log_row_marginals: logarithms of the sums of the rows, a floating-point tensor that broadcasts to
            (..., n); -inf is a sum of 0.  A share below e^-80 of the total (e^-600 in float64) counts as 0
            too, and lines with sum 0 do not belong to the matrix.  Marginals have gradients.  If only one
            side has marginals, the lines of the other side share the same total equally.  If both have, a
            call on a GPU does not check that their totals agree.
        log_col_marginals: the same for the columns, (..., m).
        row_lengths: how many rows each matrix has, counted from the first: an integer tensor that broadcasts
            to the leading shape, from 1 to n.  P and dX are 0 in the other rows.
        col_lengths: how many columns each matrix has, in the same way.
        group: a torch.distributed.ProcessGroup whose ranks each have at least one row of every matrix, and
            all columns.  Pass marginals of these rows and of all columns, or none.  A DTensor of matrices
            beyond 128 whose rows or columns are sharded needs no group.  The loss is the sum of the ranks'
            losses.  Such calls run in PyTorch, with the exact gradient, or on GPUs by the kernels where no
            rank needs a gradient or has marginals.

    Returns:
        P (..., n, m), non-negative.  Columns (rows for first="cols") sum to one up to eps, or to their
        marginals.

    Numerical policy: all arithmetic in float32 (float64 for float64 logits) whatever the input or autocast;
        one rounding to out_dtype at the end.  Bitwise reproducible, and a matrix's result does not depend
        on the batch around it under one config.  A NaN or +inf, a fully masked row, and in the log form a
        fully masked column make their own matrix NaN and no other matrix.

    Raises:
        TypeError: logits is no floating-point tensor, n_iters no integer, out_dtype no floating dtype.
        ValueError: fewer than two dimensions, n_iters out of range, eps not usable, an unknown option, a rank
            without rows.
        NotImplementedError: implementation="helion" on a CPU or in float64; beyond 128 rows or columns or
            with marginals, for lines shorter than 32 or a single line; otherwise where n_iters * eps times
            the ratio of the sides is 14 or more (docs/dev/math.md); double backward.

    Source: Xie et al., mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880), section 4.2, with
        the eps of DeepSeek's kernels; Sinkhorn and Knopp, Pacific J. Math. 21 (1967); adjoint:
        docs/dev/math.md.
    """
    n_iters = as_int(n_iters)
    of = NO_OPTIONS
    given = log_row_marginals, log_col_marginals, row_lengths, col_lengths
    # the type comes first: a tensor of several entries cannot be compared, and True == 1
    plain = type(temperature) in (int, float) and temperature == 1.0
    if not plain or any([t is not None for t in given]):
        of = Transport(temperature, *given)
    parts = distributed.shared(logits, group, first, implementation, backward, of)
    if parts is not None:
        logits, first, implementation = parts.part, parts.first, "pytorch"
    options = Options(n_iters, eps, form, first, backward, out_dtype)
    has_marginals = of.has_marginals
    serves = served_by(logits, options, implementation, has_marginals)
    dtype = out_dtype or logits.dtype
    if of is not NO_OPTIONS:
        of.check(logits, form, backward)
    if n_iters == 0:
        x = marginals.prepared(logits, of, first)[0]
        wide = x if x.dtype == torch.float64 else x.float()
        p = (wide / temperature).exp().to(dtype)
        return p if parts is None else parts.whole(p)
    implicit = implicit_options(backward)
    own_eps = eps if form == "deepseek" else 0.0
    if parts is not None:
        serves = "helion" if parts.by_kernels else "pytorch"
        p = marginals.run(logits, of, n_iters, own_eps, first, serves, dtype, parts.ranks)[0]
        return parts.whole(p)
    if has_marginals or (implicit is None and is_large(logits, n_iters, own_eps)):
        return marginals.run(logits, of, n_iters, own_eps, first, serves, dtype)[0]
    if of is not NO_OPTIONS:
        logits = logits.to(COMPUTING[logits.dtype]) / temperature
    arguments = logits, n_iters, eps, form, first, serves, dtype
    if implicit is not None:
        return implicit_op.apply(*arguments, implicit.system, implicit.solver)
    return torch_op.apply(*arguments)


NO_OPTIONS = Transport()
MOST_ACCEPTED = 4096
_accepted: dict[Hashable, str] = {}
"""Argument sets that passed `_check`, and the implementation that computes them."""


def served_by(logits: torch.Tensor, of: Options, implementation: str, marginals: bool = False) -> str:
    """The implementation that `_resolve` returns after the checks; kept for arguments that check alike."""
    key = None
    plain = type(logits) in (torch.Tensor, torch.nn.Parameter) and not logits.is_nested
    if plain and not torch.compiler.is_compiling():
        # the key has the types too, since 20 == 20.0 and 1 == True
        key = (
            logits.layout, logits.dtype, logits.shape[-2:], logits.is_cuda, type(of.n_iters), type(of.eps),
            *of, implementation, marginals,
        )  # fmt: skip
        try:
            return _accepted[key]
        except KeyError:
            pass
        except TypeError:  # an argument is unhashable; _check will name it
            key = None
    implementation = check_implementation(implementation)
    _check(logits, of)
    if marginals or (of.backward == "exact" and max(logits.shape[-2:]) > KERNEL_LARGEST):
        serves = resolve_large(implementation, logits, of.first)
    else:
        serves = _resolve(implementation, logits, of.n_iters, of.eps if of.form == "deepseek" else 0.0)
    if key is not None:
        if len(_accepted) >= MOST_ACCEPTED:
            _accepted.clear()
        _accepted[key] = serves
    return serves


def _check(logits, of: Options) -> None:
    check_tensor("logits", logits, "(..., n, m)")
    if logits.dim() < 2:
        raise ValueError(f"logits has shape {tuple(logits.shape)}; pass at least two dimensions, (..., n, m)")
    if 0 in logits.shape[-2:]:
        raise ValueError(
            f"logits has shape {tuple(logits.shape)}; matrices need at least one row and one column"
        )
    check_options(of)
    _check_shape(implicit_options(of.backward), logits)


def check_options(of: Options) -> None:
    check_int("n_iters", of.n_iters, 0, MOST_ITERS)
    check_eps(of.eps)
    check_option("form", of.form, FORMS)
    if of.form == "log" and of.eps not in (0, DEFAULT_EPS):
        raise ValueError(
            f"eps is {float(of.eps)} with form='log', which has no eps; leave it out, or pass form='deepseek'"
        )
    check_option("first", of.first, FIRSTS)
    if not isinstance(of.backward, Implicit):
        check_option("backward", of.backward, BACKWARDS)
    check_out_dtype(of.out_dtype)


def check_eps(eps) -> None:
    """Raise TypeError or ValueError unless eps is a number that the iterations take."""
    check_number("eps", eps, EPS_ACCEPTED)
    # an eps beyond 1 outweighs every entry, and q grows with each iteration until float32 overflows
    if not (eps == 0 or SMALLEST_EPS <= eps <= 1):
        raise ValueError(f"eps is {float(eps)}; pass {EPS_ACCEPTED}")


def implicit_options(backward: str | Implicit) -> Implicit | None:
    """Options of an implicit gradient; None for the exact one."""
    if isinstance(backward, Implicit):
        return backward
    return Implicit() if backward == "implicit" else None


def _check_shape(options: Implicit | None, logits: torch.Tensor) -> None:
    n, m = logits.shape[-2:]
    if options is not None and options.system != "corrected" and n != m:
        raise ValueError(
            f"Implicit(system={options.system!r}) assumes that all rows and columns sum to one, and in a "
            f"matrix of {n} x {m} they cannot; use system='corrected'"
        )


def _resolve(implementation: str, logits: torch.Tensor, n_iters: int, eps: float) -> str:
    """ "helion" or "pytorch" for this call."""
    n, m = logits.shape[-2:]

    def beyond() -> str:
        if max(n, m) > KERNEL_LARGEST:
            return f"the kernels take up to {KERNEL_LARGEST} rows and columns, logits has {n} x {m}"
        return (
            f"{n_iters} iterations with eps={float(eps)} on {n} x {m} leave the range of the kernels' float32"
        )

    # sizes are compared only where they matter, since a compiled or exported program is specialised by it
    may_drift = logits.is_cuda and n_iters * eps * KERNEL_LARGEST >= MOST_DRIFT
    is_beyond = max(n, m) > KERNEL_LARGEST or (may_drift and drifts(n, m, eps, n_iters))
    return implementation_for(implementation, "logits", logits, beyond if is_beyond else None)
