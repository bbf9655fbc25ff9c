"""Which candidate a score picks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from helion_sinkhorn.machine.binary import Binary

MODEL = 4
"""Version of score and choice; stored with every entry that rests on them."""
MARGIN = 0.75
"""The default stays unless the model gives another candidate less than this share of its cycles: on an H200
2 of 184 choices are then slower than the default, 14 at 0.9."""


def chosen(scores: Sequence[float], settings: Sequence[dict[str, Any]]) -> int:
    """Which candidate to store, by scores and by configs with their variants; the default is the first.

    More warps than the default's are left out where they share matrices: sums between them wait at barriers,
    which the score makes too cheap (on an H200 10 of 24 slower choices came from that, by up to 2.2).
    """
    most = settings[0]["num_warps"]
    fixed = [s.get("packed") or any(s.get("thread", ())) for s in settings]
    allowed = [i for i, s in enumerate(settings) if i == 0 or fixed[i] or s["num_warps"] <= most]
    best = min(allowed, key=scores.__getitem__)
    return best if scores[best] < MARGIN * scores[0] else 0


def pick(
    score: Callable[[Binary, int], float], binaries: Sequence[Binary], batch: int
) -> tuple[Binary, float, float]:
    """(what to store, its score, the default's), the default being the first of `binaries`.

    score: that of the operator's row; lower is better.
    """
    default = binaries[0]
    if not default.compiled:
        raise RuntimeError(
            f"the default does not compile for {default.device}: {'; '.join(default.problems)}"
        )
    good = [default, *(b for b in binaries[1:] if b.compiled and not b.problems)]
    scores = [score(b, batch) for b in good]
    settings = [{**dict(b.job.choice.config), **dict(b.job.choice.variant)} for b in good]
    # any sound candidate is better than a default that spills
    kept = chosen([math.inf if default.problems else scores[0], *scores[1:]], settings)
    return good[kept], scores[kept], scores[0]
