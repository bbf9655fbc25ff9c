"""Runs triton_interpreter/ in processes of their own: Triton decides at import whether it interprets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted(Path(__file__).with_name("triton_interpreter").glob("test_*.py"))
assert FILES


# one after another they are seven minutes at the end of a run
BY_NIGHT = pytest.mark.nightly("one to two minutes a file; in every run reference mode runs these bodies")


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(
            f,
            id=f.stem,
            marks=BY_NIGHT
            if f.stem.endswith(("attention", "chunked", "implicit", "mixes", "post", "pre"))
            else (),
        )
        for f in FILES
    ],
)
def test_generated_code_in_the_triton_interpreter(file):
    for name in ("helion", "triton"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    interpret(file)


def test_the_code_that_the_oldest_helion_generates():
    """Padded matrices, whose sums Helion 1.5.0 masks less often; torch 2.11 takes no newer one."""
    helion = Path(sys.prefix) / "helion-1.5.0"
    if not helion.exists():
        pytest.skip("Helion 1.5.0 is not beside the environment: ci/bootstrap.py installs it")
    interpret(
        FILES[-1].with_name("test_sinkhorn.py"),
        "-k",
        "kinds_of_logits and 3 and masked",
        PYTHONPATH=str(helion),
    )


def interpret(file: Path, *options: str, **environment: str) -> None:
    """Run a test file where Triton interprets."""
    pytest_alone = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, *pytest_alone, file, *options]
    environment = {**os.environ, "TRITON_INTERPRET": "1", **environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
