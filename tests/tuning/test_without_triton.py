"""Commands where a CPU build of torch is installed, which brings no Triton."""

from __future__ import annotations

import pytest
from forked import python

PROGRAM = """
import importlib.metadata, sys
sys.modules["triton"] = None  # an import of it fails
found = importlib.metadata.version
def version(name):
    if name == "triton":
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)
importlib.metadata.version = version
from helion_sinkhorn.__main__ import main
sys.argv = ["helion_sinkhorn", *sys.argv[1:]]
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("env", 0, "triton          -"),
        ("show --device h200 --only deepseek_4x4_fp32_b128", 0, "no Triton here"),
        ("warm --op sinkhorn n=4", 2, "needs Triton to generate code"),
        ("tune --device h200 --offline --only deepseek_4x4_fp32_b128", 2, "needs Triton to generate code"),
    ],
)
def test_a_command_works_or_says_what_it_needs(words, status, said):
    done = python("-c", PROGRAM, *words.split())
    assert (done.returncode, said in done.stdout + done.stderr) == (status, True), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
