"""A process that works for another ends with it: what was killed can stop nothing that it started."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time

SECONDS = 1.0
"""Between two looks at the parent, where the kernel tells nothing."""
PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Let this process be killed as soon as the one that started it is gone.

    On Linux the kernel does it, even within a compiler, at the end of the thread that started this process;
    elsewhere a thread looks.  Call it first: until then only the end of its input tells a child.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    else:
        threading.Thread(target=watch, args=(os.getppid(),), daemon=True).start()
    started_by = multiprocessing.parent_process()
    # gone before the kernel was asked
    if started_by is not None and os.getppid() != started_by.pid:
        os.kill(os.getpid(), signal.SIGKILL)


def watch(parent: int) -> None:
    """Kill this process when another is its parent."""
    while os.getppid() == parent:
        time.sleep(SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
