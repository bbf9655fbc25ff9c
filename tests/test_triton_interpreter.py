"""Runs triton_interpreter/ in a process of its own: Triton decides at import whether it interprets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).with_name("triton_interpreter")


def test_generated_code_in_the_triton_interpreter():
    for name in ("helion", "triton"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", TESTS]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
