"""The seconds that a whole command may take."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

AGAIN = 5.0
"""Seconds between signals: code that swallows one meets the next."""
TO_END = 2.0
"""Seconds of a budget for what a command does when its work stops: tables, and the end of CUDA."""


class OutOfTime(BaseException):
    """The command's seconds are spent; like KeyboardInterrupt no Exception, which candidates may raise."""


def age() -> float:
    """Seconds since this process began: imports take some of a command's time before any of its code runs."""
    # the command's name, in parentheses, may hold spaces; the 22nd field is the start, in ticks after boot
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def raised_after(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in the body when the seconds are over, whatever it does or waits for.

    Only the main thread may use it, and nothing else may use SIGALRM.  A compiler within this process is
    waited for; those in processes of their own are not.
    """

    def over(number: int, frame: object) -> None:
        raise OutOfTime

    if seconds == float("inf"):
        yield
        return
    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3), AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
