"""Choices of Triton's autotuner, made again when nothing else runs on the GPU."""

from __future__ import annotations

import functools
import gc
import sys

WARMUP_MILLISECONDS, MILLISECONDS = 1, 5
"""Milliseconds for each config, instead of Triton's 25 and 100: other packages' kernels have up to 48
configs.
"""


def forget() -> None:
    """Let every autotuned kernel of this process choose again at its next call.

    Jobs that get ready side by side disturb each other's choices.  Compiled code is kept.
    """
    if "triton.runtime.autotuner" not in sys.modules:
        return
    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench

    # some objects object to isinstance
    for autotuner in [o for o in gc.get_objects() if type(o) is Autotuner]:
        autotuner.cache.clear()
        autotuner.do_bench = functools.partial(do_bench, warmup=WARMUP_MILLISECONDS, rep=MILLISECONDS)
