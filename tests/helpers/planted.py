"""Runs of tritonbench_ops under the stub of tritonbench, wrong backends planted beside the right ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

from forked import python

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "tests" / "tritonbench" / "stub"
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
print(json.dumps(found))
"""


def outputs(planting: str, runs: list[list[str]]) -> list[str]:
    """What command lines print, and last their exit statuses: one process for all, after code that plants."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(STUB), str(ROOT)])}
    done = python("-c", BEFORE + planting + AFTER, json.dumps(runs), env=environment, cwd=STUB)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


def statuses(planting: str, runs: list[list[str]]) -> list[int]:
    """Exit statuses of command lines, after code that adds to `parts.BACKENDS`."""
    return json.loads(outputs(planting, runs)[-1])
