"""Choices of Triton's autotuner, made again when nothing else runs on the GPU."""

from __future__ import annotations

import functools
import gc
import sys

WARMUP_MILLISECONDS, MILLISECONDS = 1, 5
"""For each config, instead of Triton's 25 and 100: a kernel of peers has up to 48 of them."""


def forget() -> int:
    """Let every autotuned kernel of this process choose again at its next call; how many they are.

    Jobs get ready side by side and disturb each other's choices.  What they compiled stays.
    """
    if "triton.runtime.autotuner" not in sys.modules:
        return 0
    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench

    # some objects object to isinstance
    found = [o for o in gc.get_objects() if type(o) is Autotuner]
    for autotuner in found:
        autotuner.cache.clear()
        autotuner.do_bench = functools.partial(do_bench, warmup=WARMUP_MILLISECONDS, rep=MILLISECONDS)
    return len(found)
