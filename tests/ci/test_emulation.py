"""AMD's machine code of a few workloads, executed on this CPU through the gate; make emulate runs them
all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") != "nightly",
    reason="seven minutes of one core: the nightly workflow runs it",
)

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = ("mhc_fp32", "driver_8", "mid_16_deepseek", "dot_tail", "attention_ungated")
"""Sinkhorn of n = 4 and 8 forward and backward, a reduction across lanes, dot_compress, a walk."""
KERNELS = {
    "mhc_fp32": {"P": "sinkhorn_forward", "dX": "sinkhorn_backward"},
    "driver_8": {"P": "sinkhorn_forward", "dX": "sinkhorn_backward"},
    "mid_16_deepseek": {"P": "sinkhorn_forward"},
    "dot_tail": {"out": "dot_compress_product", "dz": "dot_compress_product", "dx": "dot_compress_expand"},
    "attention_ungated": {"o": "linear_attention_walk", "dq": "linear_attention_walk"},
}
"""What must be among the served results of each."""


def script(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    """A script of ci/ in a process of its own: torch and Triton keep the device for the life of one."""
    unset = ("HELION_INTERPRET", "TRITON_INTERPRET", "TRITON_CACHE_DIR")
    environment = {k: v for k, v in os.environ.items() if k not in unset}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", f"ci.{name}", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("device", ["mi350", "mi300x"])
def test_machine_code_passes_the_gate_when_executed(device, tmp_path):
    done = script("emulate", "--devices", device, "--workloads", *WORKLOADS, "--served",
                  "--steps", 1 << 12, "--models", "neighbour by a hash, subnormals flushed",
                  "--jobs", 1, "--out", tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    artefact = json.loads((tmp_path / f"accuracy-{device}-emulated.json").read_text())
    assert artefact["passes"]
    assert artefact["device"]["emulated"] is True
    assert "emulated on a CPU" in artefact["device"]["name"]
    for name, kernels in KERNELS.items():
        record = artefact["workloads"][name]
        served = [r for r in record["results"] if r["served"]]
        assert kernels.items() <= {(r["of"], r["kernel"]) for r in served}
        assert all(0 < r["worst"] <= 1 for r in served)
        assert record["launches"] >= 4 * len(served)


def test_planted_faults_are_found():
    done = script("mutants", "--each", 1)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    planted, found = (int(done.stdout.split(word)[0].split()[-1]) for word in (" mutants,", " found,"))
    assert planted > 60
    assert found > planted / 2


def test_devices_that_are_not_emulated_are_refused():
    done = script("emulate", "--devices", "h200")
    assert done.returncode == 2
    assert "invalid choice: 'h200' (choose from" in done.stderr
