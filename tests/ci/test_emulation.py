"""AMD's machine code of a few workloads, executed on this CPU through the gate; make emulate runs all."""

from __future__ import annotations

import argparse
import json

import pytest
from forked import of_ci, printed, python

pytest.importorskip("triton")

from ci import emulate

KERNELS = {"two_matrices": {"P": "sinkhorn_forward", "dX": "sinkhorn_backward"}}
"""What is run: Sinkhorn forward and backward; the nightly workflow runs everything."""


def test_machine_code_passes_the_gate_when_executed(tmp_path):
    wanted = [f"{name}:{','.join(kernels)}" for name, kernels in KERNELS.items()]
    words = "--devices", "mi350", "--workloads", *wanted, "--used", "--steps", 1 << 10, "--jobs", 1
    words += "--models", "neighbour by a hash, subnormals flushed", "--out", tmp_path
    printed("-m", "ci.emulate", *words, **of_ci())
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


def test_what_is_not_emulated_is_refused():
    done = python("-m", "ci.emulate", "--devices", "h200", **of_ci())
    assert done.returncode == 2
    assert "invalid choice: 'h200' (choose from" in done.stderr
    with pytest.raises(argparse.ArgumentTypeError, match="'mhc' has no tag ci; choose from mhc_fp32,"):
        emulate.selected("mhc")
    assert emulate.selected("mhc_fp32:P,dX") == ("mhc_fp32", {"P", "dX"})
