"""Whether a gradient is written over depends on the state of a process: its tests have one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).with_name("test_own_gradient.py")


def test_in_a_process_of_its_own():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FILE)]
    environment = {**os.environ, "OWN_GRADIENT": "1"}
    root = FILE.parents[2]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
