"""Runs triton_interpreter/ in processes of their own: Triton decides at import whether it interprets."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from forked import printed

FOLDER = Path(__file__).with_name("triton_interpreter")
ALWAYS = FOLDER / "test_sinkhorn.py"
OTHERS = sorted(set(FOLDER.glob("test_*.py")) - {ALWAYS})
assert OTHERS
LONG = pytest.mark.nightly("one to two minutes; reference mode runs these bodies always")


@pytest.mark.parametrize(
    "file", [ALWAYS, *(pytest.param(f, marks=LONG) for f in OTHERS)], ids=lambda f: f.stem
)
def test_generated_code_in_the_triton_interpreter(file):
    pytest.importorskip("triton", reason="a CPU torch brings none; the cpu-codegen extra does")
    interpret(file)


@pytest.mark.nightly("20 s for a Helion that torch 2.11 alone takes; the tested one's code runs always")
def test_the_code_that_the_oldest_helion_generates():
    """Padded matrices, whose sums Helion 1.5.0 masks less often; torch 2.11 takes no newer one."""
    helion = Path(sys.prefix) / "helion-1.5.0"
    if not helion.exists():
        pytest.skip("Helion 1.5.0 is not beside the environment: ci/bootstrap.py installs it")
    interpret(ALWAYS, "-k", "kinds_of_logits and 3-5 and masked", PYTHONPATH=str(helion))


def interpret(file: Path, *options: str, **environment: str) -> None:
    """Run a test file where Triton interprets."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", **environment}
    alone = "-q", "-p", "no:cacheprovider", "-p", "no:xdist"
    printed("-m", "pytest", *alone, file, *options, env=environment)
