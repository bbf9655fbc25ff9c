"""The options of sinkhorn_balance, made and checked once."""

from __future__ import annotations

from typing import NamedTuple

from helion_sinkhorn.runtime.checks import check_finite, check_int, check_option

SCALES, FIRST = ("row_rms", "none"), ("rows", "cols")
SMALLEST_EPS = 2.0**-100
"""float32 holds this eps and 1 / eps."""


class BalanceOptions(NamedTuple):
    """The options of a call; api.sinkhorn_balance explains them."""

    steps: int = 11
    zero_row_threshold: float = 1e-3
    eps: float = 1e-20
    scale: str = "row_rms"
    first: str = "rows"

    @classmethod
    def checked(
        cls, steps: object, zero_row_threshold: object, eps: object, scale: object, first: object
    ) -> BalanceOptions:
        """The options with these values, or the error that says what is accepted."""
        steps = check_int("steps", steps, 1, what="row and column steps in turn")
        at_least_zero = "a finite float of at least 0, the share of the mean norm up to which rows are zero"
        check_finite("zero_row_threshold", zero_row_threshold, at_least_zero)
        if zero_row_threshold < 0:
            raise ValueError(f"zero_row_threshold is {zero_row_threshold}; pass {at_least_zero}")
        accepted = "a finite float of at least 1e-30, which is added to each norm"
        check_finite("eps", eps, accepted)
        if eps < SMALLEST_EPS:
            raise ValueError(f"eps is {eps}; pass {accepted}")
        check_option("scale", scale, SCALES)
        check_option("first", first, FIRST)
        return cls(steps, float(zero_row_threshold), float(eps), scale, first)
