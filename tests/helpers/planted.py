"""Runs of tritonbench_ops under the stub of tritonbench, wrong backends planted beside the right ones."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from forked import python

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "tests" / "tritonbench" / "stub"
CHECKOUT = os.environ.get("TRITONBENCH_DIR", "")
needs_checkout = pytest.mark.skipif(
    not CHECKOUT, reason="TRITONBENCH_DIR names no checkout of tritonbench (it is on no package index)"
)
TREES = ["stub", pytest.param("checkout", marks=needs_checkout)]
BEFORE = """
import json, sys
import torch
from tritonbench_ops.launch import run

class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out):
        return out.clone()
    @staticmethod
    def backward(ctx, grad):
        return 1.02 * grad

def raises(*tensors):
    raise RuntimeError("planted")
"""
AFTER = """
found = []
for arguments in json.loads(sys.argv[1]):
    try:
        run(arguments)
        found.append(0)
    except SystemExit as end:
        found.append(1 if end.code else 0)
    except Exception as error:
        found.append(str(error))
print(json.dumps(found))
"""


def folder_of(tree: str) -> Path:
    return STUB if tree == "stub" else Path(CHECKOUT).resolve()


def under(tree: Path, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python with the stub or a checkout of tritonbench, in its folder."""
    path = os.pathsep.join([str(tree), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return python(*words, env={**os.environ, "PYTHONPATH": path, **environment}, cwd=tree)


def outputs(planting: str, runs: list[list[str]], tree: Path = STUB) -> list[str]:
    """What command lines print, and last their exit statuses: one process for all, after code that plants."""
    done = under(tree, "-c", BEFORE + planting + AFTER, json.dumps(runs))
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


MODES = "fwd", "bwd", "fwd_bwd", "fwd_no_grad"
WITH_GRADIENTS = "bwd", "fwd_bwd"


def statuses(planting: str, runs: list[list[str]], tree: Path = STUB) -> list[int | str]:
    """Exit statuses of command lines, or what they raise, after code that adds to `parts.BACKENDS`."""
    return json.loads(outputs(planting, runs, tree)[-1])
