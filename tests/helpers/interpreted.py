"""Properties whose examples run interpreted kernels: half a second to two seconds each."""

from __future__ import annotations

from hypothesis import settings

FEWER = settings(max_examples=settings.default.max_examples // 5)
"""5 examples in each run and 200 by night."""
