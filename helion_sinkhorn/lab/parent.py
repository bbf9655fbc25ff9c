"""A process that works for another ends with it: a parent that was killed cannot stop what it started."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time

SECONDS = 1.0
"""Seconds between two looks at the parent."""
PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Let this process be killed as soon as the process that started it is gone.

    On Linux the operating system does it, even within a compiler; elsewhere, and in a worker of a pool, a
    thread checks.  Call it first: until then a child notices only the end of its input.
    """
    pool = multiprocessing.parent_process()
    # The kernel waits for the thread that started this process.  In a pool that thread ends before the pool
    # does, and a worker that is killed while it holds the lock of a queue leaves the others waiting for ever
    if sys.platform == "linux" and pool is None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    else:
        parent = os.getppid() if pool is None else pool.pid
        threading.Thread(target=watch, args=(parent,), daemon=True).start()


def watch(parent: int) -> None:
    """Kill this process when another is its parent."""
    while os.getppid() == parent:
        time.sleep(SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
