"""How far a long command is: a bar on a terminal, elsewhere a line every ten seconds, with what is left."""

from __future__ import annotations

import contextlib
import threading
import time

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

EVERY = 10.0
"""Seconds between two lines."""


def duration(seconds: float) -> str:
    """Seconds in words: 45 s, 7 min 40 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


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
        self.work, self.worked = work or float(total), 0.0
        self.done, self.begin = 0, time.monotonic()
        self.last = self.begin
        self._ended, self._counting = threading.Event(), threading.Lock()
        columns = TextColumn("{task.description}"), BarColumn()
        self._bar = Bar(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task(self.line(), total=total)
        self._lines = threading.Thread(target=self._say, daemon=True)

    def line(self) -> str:
        """Steps done, time spent, and the time that the rest takes at the same speed."""
        spent = time.monotonic() - self.begin
        said = f"{self.done} of {self.total} {self.unit}, {duration(spent)}"
        if not self.done or self.done >= self.total:
            return said
        # at the speed until the last step ended: the one that runs says nothing yet
        whole = (self.last - self.begin) / self.worked * self.work
        return f"{said}, about {duration(max(whole - spent, 1.0))} left"

    def step(self, work: float = 1.0) -> None:
        """One more is done, of so much work."""
        with self._counting:
            self.done += 1
            self.worked += work
            self.last = time.monotonic()
            self._bar.update(self._task, advance=1)

    def __enter__(self) -> Progress:
        self.begin = self.last = time.monotonic()
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
