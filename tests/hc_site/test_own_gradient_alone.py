"""Whether a gradient is written over depends on the state of a process: its tests have one of their own."""

from __future__ import annotations

import os
from pathlib import Path

from forked import python

FOLDER = Path(__file__).parent
TESTS = (
    FOLDER / "test_own_gradient.py",
    f"{FOLDER / 'test_boundary_backward.py'}::test_dx_is_written_over_a_gradient_that_is_nobody_elses",
)


def test_in_a_process_of_its_own():
    alone = "-q", "-p", "no:cacheprovider", "-p", "no:xdist"
    environment = {**os.environ, "OWN_GRADIENT": "1"}
    done = python("-m", "pytest", *alone, *TESTS, env=environment, cwd=FOLDER.parents[1], loaded=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
