"""The options of one tune command."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from helion_sinkhorn.lab.tuning import writer


def now() -> str:
    """The minute, in UTC."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%MZ")


@dataclass(frozen=True)
class Options:
    """One `tune` command."""

    device: str
    out: Path
    kernel: str | None = None
    effort: str = "quick"
    end: float = float("inf")
    """When work must stop, on time.monotonic's clock."""
    force: bool = False
    commit: str = ""
    rank: int = 0
    world: int = 1
    workers: int = 1
    cache: Path | None = None
    utc: str = field(default_factory=now)
    command: str = field(default_factory=lambda: writer.command("helion_sinkhorn", sys.argv[1:]))

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.end - time.monotonic()
