"""Whether a gradient is written over depends on the state of a process: its tests have one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
TESTS = (
    str(FOLDER / "test_own_gradient.py"),
    f"{FOLDER / 'test_boundary_backward.py'}::test_dx_is_written_over_a_gradient_that_is_nobody_elses",
)


def test_in_a_process_of_its_own():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    environment = {**os.environ, "OWN_GRADIENT": "1"}
    root = FOLDER.parents[1]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
