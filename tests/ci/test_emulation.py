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
KERNELS = {
    "two_matrices": {"P": "sinkhorn_forward", "dX": "sinkhorn_backward"},
    "mhc_fp32": {"P": "sinkhorn_forward", "dX": "sinkhorn_backward"},
    "driver_8": {"P": "sinkhorn_forward", "dX": "sinkhorn_backward"},
    "mid_16_deepseek": {"P": "sinkhorn_forward"},
    "dot_tail": {"out": "dot_compress_product"},
    "attention_reverse": {"o": "linear_attention_walk"},
}
"""What is run: Sinkhorn of n = 4 and 8 forward and backward, a reduction across lanes, dot_compress, a walk
from the last token to the first."""
BY_NIGHT = pytest.mark.nightly("one to two minutes; a row with gradients and one with products run always")
ONCE_WRONG = pytest.mark.nightly("20 s each for one kernel that was wrong once")


def script(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    """A script of ci/ in a process of its own: torch and Triton keep the device for the life of one."""
    unset = ("HELION_INTERPRET", "TRITON_INTERPRET", "TRITON_CACHE_DIR")
    environment = {k: v for k, v in os.environ.items() if k not in unset}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return python("-m", f"ci.{name}", *words, env=environment, cwd=ROOT, loaded=True)


@pytest.mark.parametrize(
    ("device", "names"),
    [
        pytest.param("mi350", ("two_matrices", "dot_tail"), id="mi350"),
        *(
            pytest.param(key, tuple(KERNELS), id=f"{key} all", marks=BY_NIGHT)
            for key in ("mi350", "mi300x")
        ),
    ],
)  # fmt: skip
def test_machine_code_passes_the_gate_when_executed(device, names, tmp_path):
    expected = {name: KERNELS[name] for name in names}
    wanted = [f"{name}:{','.join(kernels)}" for name, kernels in expected.items()]
    done = script("emulate", "--devices", device, "--workloads", *wanted, "--served",
                  "--steps", 1 << 10, "--models", "neighbour by a hash, subnormals flushed",
                  "--jobs", 1, "--out", tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    artefact = json.loads((tmp_path / f"accuracy-{device}-emulated.json").read_text())
    assert artefact["passes"]
    assert artefact["device"]["emulated"] is True
    assert "emulated on a CPU" in artefact["device"]["name"]
    assert artefact["workloads"].keys() == expected.keys()
    for name, kernels in expected.items():
        record = artefact["workloads"][name]
        assert {(r["of"], r["kernel"]) for r in record["results"]} >= kernels.items()
        assert {r["of"] for r in record["results"]} == kernels.keys()
        assert all(r["served"] and 0 < r["worst"] <= 1 for r in record["results"])
        # once as it is, in another state, in two halves, under the model
        assert record["launches"] >= 5 * len(record["results"])


@ONCE_WRONG
def test_a_matrix_has_the_same_bits_at_every_place_of_a_block(tmp_path):
    """51 matrices of 4 x 4 in blocks of 64; in halves, 16 of them stand where LLVM once fused no product."""
    wanted = "implicit_4:implicit dX (cg)"
    done = script(
        "emulate", "--devices", "mi350", "--workloads", wanted, "--models", "--jobs", 1, "--out", tmp_path
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    artefact = json.loads((tmp_path / "accuracy-mi350-emulated.json").read_text())
    (result,) = artefact["workloads"]["implicit_4"]["results"]
    assert artefact["workloads"]["implicit_4"]["judged"] == 51
    assert (result["kernel"], dict(result["config"])["block_sizes"]) == ("sinkhorn_implicit_cg", [64])
    assert result["reproducible"] == {"other state and order": True, "split": True}


@ONCE_WRONG
def test_a_sum_waits_for_the_matrix_product_whose_registers_it_takes(tmp_path):
    """Three streams on gfx942: as inline assembly the sum came after 5 of the 7 wait states."""
    done = script("emulate", "--devices", "mi300x", "--workloads", "hc_post_three_streams:out", "--models",
                  "--steps", 1 << 10, "--jobs", 1, "--out", tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    artefact = json.loads((tmp_path / "accuracy-mi300x-emulated.json").read_text())
    record = artefact["workloads"]["hc_post_three_streams"]
    assert {r["kernel"] for r in record["results"]} == {"hc_post_forward", "hc_boundary_forward"}
    assert not record.get("findings")


@pytest.mark.parametrize(
    ("programs", "each", "fewest"),
    [
        (1, 1, 15),
        pytest.param(4, 1, 60, marks=pytest.mark.nightly("three minutes of one core")),
    ],
)
def test_planted_faults_are_found(programs, each, fewest):
    done = script("mutants", "--each", each, "--programs", programs)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    planted, found = (int(done.stdout.split(word)[0].split()[-1]) for word in (" mutants,", " found,"))
    assert planted >= fewest
    assert found > planted / 2


def test_what_is_not_emulated_is_refused():
    done = script("emulate", "--devices", "h200")
    assert done.returncode == 2
    assert "invalid choice: 'h200' (choose from" in done.stderr
    with pytest.raises(argparse.ArgumentTypeError, match="'mhc' has no tag ci; choose from mhc_fp32,"):
        emulate.selected("mhc")
    assert emulate.selected("mhc_fp32:P,dX") == ("mhc_fp32", {"P", "dX"})
