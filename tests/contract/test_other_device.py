"""Devices of neither CUDA nor ROCm: PyTorch computes there, as the pages say."""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path

import pytest
from forked import printed
from operator_table import OPERATORS

HELPERS = Path(__file__).parents[1] / "helpers"


@functools.cache
def outcomes():
    """What each operator does on a device made of Python; it is one for the whole process."""
    path = os.pathsep.join([str(HELPERS), *sys.path])
    said = printed(HELPERS / "other_device.py", env={**os.environ, "PYTHONPATH": path})
    return json.loads(said.splitlines()[-1])


@pytest.mark.parametrize("name", [name for name, row in OPERATORS.items() if not row.kernels])
def test_gradients_are_those_on_a_cpu(name):
    assert outcomes()[name] is True


def test_kernels_are_refused_there():
    assert (
        "the kernels run on CUDA and ROCm GPUs, logits is on other:0; use implementation='auto'"
        in (outcomes()["helion"])
    )
