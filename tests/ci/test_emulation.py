"""AMD's machine code of a few workloads, executed on this CPU through the gate; make emulate runs all."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path

import pytest
from forked import python

pytest.importorskip("triton")

from ci import emulate

ROOT = Path(__file__).resolve().parents[2]
KERNELS = {"two_matrices": {"P": "sinkhorn_forward", "dX": "sinkhorn_backward"}}
"""What is run: Sinkhorn forward and backward; the nightly workflow runs everything."""


def script(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    """A script of ci/ in a process of its own: torch and Triton keep the device for the life of one."""
    unset = ("HELION_INTERPRET", "TRITON_INTERPRET", "TRITON_CACHE_DIR")
    environment = {k: v for k, v in os.environ.items() if k not in unset}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return python("-m", f"ci.{name}", *words, env=environment, cwd=ROOT, loaded=True)


def test_machine_code_passes_the_gate_when_executed(tmp_path):
    wanted = [f"{name}:{','.join(kernels)}" for name, kernels in KERNELS.items()]
    done = script("emulate", "--devices", "mi350", "--workloads", *wanted, "--used",
                  "--steps", 1 << 10, "--models", "neighbour by a hash, subnormals flushed",
                  "--jobs", 1, "--out", tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    artefact = json.loads((tmp_path / "accuracy-mi350-emulated.json").read_text())
    assert artefact["passes"]
    assert artefact["device"]["emulated"] is True
    assert "emulated on a CPU" in artefact["device"]["name"]
    assert artefact["workloads"].keys() == KERNELS.keys()
    for name, kernels in KERNELS.items():
        record = artefact["workloads"][name]
        assert {(r["of"], r["kernel"]) for r in record["results"]} >= kernels.items()
        assert {r["of"] for r in record["results"]} == kernels.keys()
        assert all(r["served"] and 0 < r["worst"] <= 1 for r in record["results"])
        # once as it is, in another state, in two halves, under the model
        assert record["launches"] >= 5 * len(record["results"])


def test_planted_faults_are_found():
    done = script("mutants", "--each", 1, "--programs", 1)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    planted, found = (int(done.stdout.split(word)[0].split()[-1]) for word in (" mutants,", " found,"))
    assert planted >= 15
    assert found > planted / 2


def test_what_is_not_emulated_is_refused():
    done = script("emulate", "--devices", "h200")
    assert done.returncode == 2
    assert "invalid choice: 'h200' (choose from" in done.stderr
    with pytest.raises(argparse.ArgumentTypeError, match="'mhc' has no tag ci; choose from mhc_fp32,"):
        emulate.selected("mhc")
    assert emulate.selected("mhc_fp32:P,dX") == ("mhc_fp32", {"P", "dX"})
