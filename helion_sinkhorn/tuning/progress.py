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
    """Counts steps of about equal length; `step` may be called from any thread.

    Args:
        unit: what is counted, in the plural.
        total: how many.
        every: seconds between two lines where the console is no terminal.
    """

    def __init__(self, unit: str, total: int, console: Console, every: float = EVERY) -> None:
        self.unit, self.total, self.console, self.every = unit, total, console, every
        self.done, self.begin = 0, time.monotonic()
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
        return f"{said}, about {duration(spent / self.done * (self.total - self.done))} left"

    def step(self) -> None:
        """One more is done."""
        with self._counting:
            self.done += 1
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
