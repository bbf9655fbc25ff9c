"""How far a long command is: a bar on a terminal, elsewhere a line every ten seconds, with what is left."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

EVERY = 10.0
"""Seconds between two lines."""
ENOUGH = 8
"""Steps that tell a speed; of fewer, several may end together that ran side by side."""


def duration(seconds: float) -> str:
    """Seconds in words: 45 s, 7 min 40 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def seconds_left(ended: Sequence[tuple[float, float]], work: float, now: float) -> float | None:
    """Seconds until all work is done, at the speed measured so far; None where no speed is known.

    What comes once, such as processes that start, is a part of the first step's time.  So the speed is that
    of the steps after the first, as soon as they are `ENOUGH` or have taken longer than it.

    Args:
        ended: (seconds since the begin, work) of each step, in the order in which they ended.
        work: of all steps, in the same unit.
        now: seconds since the begin.
    """
    done = sum(own for _, own in ended)
    if not done:
        return None
    (first, of_first), (last, _) = ended[0], ended[-1]
    if done > of_first and last - first > (first if len(ended) <= ENOUGH else 0):
        speed = (done - of_first) / (last - first)
    else:
        speed = done / max(last, 1e-9)
    # of the step that runs nothing is known but that it began when another ended
    left = (work - done) / speed - (now - last)
    return max(left, 1.0) if left > 0 else None


class Progress(contextlib.AbstractContextManager):
    """Counts steps; `step` may be called from any thread.

    Args:
        unit: what is counted, in the plural.
        total: how many.
        every: seconds between two lines where the console is no terminal.
        work: of all steps, where they are not of about equal length.
    """

    def __init__(
        self, unit: str, total: int, console: Console, every: float = EVERY, work: float | None = None
    ) -> None:
        self.unit, self.total, self.console, self.every = unit, total, console, every
        self.work, self.begin = work or float(total), time.monotonic()
        self.ended: list[tuple[float, float]] = []
        self._ended, self._counting = threading.Event(), threading.Lock()
        columns = TextColumn("{task.description}"), BarColumn()
        self._bar = Bar(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task(self.line(), total=total)
        self._lines = threading.Thread(target=self._say, daemon=True)

    def line(self) -> str:
        """Steps done, time spent, and the time that the rest takes at the same speed."""
        spent, done = time.monotonic() - self.begin, len(self.ended)
        said = f"{done} of {self.total} {self.unit}, {duration(spent)}"
        left = seconds_left(self.ended, self.work, spent) if done < self.total else None
        return said if left is None else f"{said}, about {duration(left)} left"

    def step(self, work: float = 1.0) -> None:
        """One more is done, of so much work."""
        with self._counting:
            self.ended.append((time.monotonic() - self.begin, work))
            self._bar.update(self._task, advance=1)

    def __enter__(self) -> Progress:
        self.begin = time.monotonic()
        self._bar.start()
        self._lines.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._lines.join()
        self._bar.stop()

    def _say(self) -> None:
        # a bar moves between steps too: one may take minutes
        while not self._ended.wait(1.0 if self.console.is_terminal else self.every):
            if self.console.is_terminal:
                self._bar.update(self._task, description=self.line())
            else:
                self.console.print(self.line())
