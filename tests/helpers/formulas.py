"""Programs that are followed with formulas in place of floats (ci/same_bits.py)."""

from __future__ import annotations

from pathlib import Path

from forked import python


def one_formula_everywhere(cache: Path, *workloads: str, more_than: int) -> None:
    """Each result is one formula in every program and place, and there are more results than so many."""
    done = python("-m", "ci.same_bits", "--cache", cache, "--workloads", *workloads)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("one formula everywhere") == len(done.stdout.splitlines()) > more_than
