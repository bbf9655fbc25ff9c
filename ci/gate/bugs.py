"""Bugs of operators that have no list of Wrong yet, in the words of wrong.py."""

from __future__ import annotations

from dataclasses import dataclass

from ci.gate.damage import Change, at, edited, stored  # noqa: F401
from ci.gate.wrong import Run, as_if_contiguous, elements_apart, later, of_any  # noqa: F401


@dataclass(frozen=True)
class Bug:
    """One wrong implementation, and where it shows."""

    name: str
    on: str
    """The workload."""
    run: Run
    of: tuple[str, ...]
    """The results it is judged by."""
    hidden: str = ""
    """Why nothing can tell, of one that is no error after all."""


def anywhere(run: Run, on: str, of: str, upstream: int) -> list[Bug]:
    """The bugs of every operator, planted into a right implementation; `upstream` numbers the gradient."""
    return [Bug(w.name, on, w.run, w.of) for w in of_any(run, on, of, upstream)]
