"""The options of one tune command."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from helion_sinkhorn.configs import writer


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
    budget: float = 60.0
    """Seconds for the candidates of one key."""
    limit: float = float("inf")
    """Seconds after which no further key is begun."""
    force: bool = False
    commit: str = ""
    rank: int = int(os.environ.get("RANK", "0"))
    world: int = int(os.environ.get("WORLD_SIZE", "1"))
    workers: int = 1
    cache: Path | None = None
    utc: str = field(default_factory=now)
    command: str = field(default_factory=lambda: writer.command("helion_sinkhorn", sys.argv[1:]))
