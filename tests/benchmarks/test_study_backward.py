"""docs/sinkhorn.md shows the errors of the present gradients."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="needs the bench extra, which make installs")

from benchmarks.studies import backward as study

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sinkhorn.md"
LOGITS = *map(str, study.SCALES), "identity-like"


def shown(n: int, n_iters: int, method: str) -> list[float]:
    """The median errors that the page has for a method, in the order of LOGITS."""
    section = PAGE.read_text().split(f"\nn = {n}, T = {n_iters}\n")[1]
    (row,) = re.findall(rf"^\| {method} \|(.*)\|$", section.split("\n\n")[0], re.M)
    return [float(cell.split(",")[0]) for cell in row.split("|")]


@pytest.mark.parametrize("method", ["exact", "corrected cg", "P frozen"])
@pytest.mark.parametrize(("n", "n_iters"), [(4, 5), (4, 20)])
def test_the_page_has_the_errors_of_today(n, n_iters, method):
    """Within a factor of 4: the last digits depend on the machine that made the page."""
    for name, before in zip(LOGITS, shown(n, n_iters, method), strict=True):
        x = study.logits_of(name, n)
        dy = study.make_cotangents(x)
        p, expected = study.truth(x, dy, n_iters)
        error = float(study.relative(study.METHODS[method](x, p.float(), dy, n_iters), expected).median())
        assert before / 4 <= error <= 4 * before, f"{name}: {error:.0e}, the page has {before:.0e}"
