"""Entries under other Tritons than the one that chose them: what is compiled, and what is wrong with it."""

from __future__ import annotations

import sys

import pytest
from stored import entry, write

pytest.importorskip("triton")

from ci import machine_versions
from helion_sinkhorn.configs import store
from helion_sinkhorn.lab.machine.binary import Binary
from helion_sinkhorn.lab.machine.compiler import Compiler

pytestmark = pytest.mark.usefixtures("fresh_caches")

GOOD = {
    "operations": {"rcp.approx.ftz.f32": 1}, "modes": {"enable_fp_fusion": 1}, "threads": 32, "occupancy": 32,
    "accesses": {"load 128": 1, "store 128": 1},
}  # fmt: skip

SPILLING = {"spills": 4, "spill_bytes": 16, "counts": {"local": 4}}


def made(warps, batch, triton, evidence="measured"):
    config = {"block_sizes": [32], "num_warps": warps}
    return entry(batch, config=config, evidence=evidence, triton=triton)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A tuning folder: one config for each Triton at batch 64, one of 3.6 alone at 4096."""
    write(tmp_path, [made(1, 64, "3.6"), made(2, 64, "3.9"), made(4, 4096, "3.6")])
    monkeypatch.setattr(store, "folders", lambda: [tmp_path])
    monkeypatch.setattr(store, "triton_minor", lambda: "3.9")
    return tmp_path


def warps(jobs):
    return [dict(job.choice.config)["num_warps"] for job in jobs]


def test_what_no_time_vouches_for_is_compiled(folder):
    """Under 3.9 the entry of 3.6 without one of 3.9; under 3.6 nothing; under 3.7 what 3.9 chose."""
    served = {v: list(machine_versions.served(folder, "h200", v)) for v in ("3.6", "3.7", "3.9")}
    compiled = {version: warps(s.job for s in some) for version, some in served.items()}
    assert compiled == {"3.6": [], "3.7": [2, 4], "3.9": [4]}
    assert {(s.made, s.job.batch) for s in served["3.9"]} == {("3.6", 4096)}


def test_a_prediction_vouches_for_nothing(tmp_path):
    write(tmp_path, [made(1, 64, "3.9", "compiled")])
    assert warps(s.job for s in machine_versions.served(tmp_path, "h200", "3.9")) == [1]


def put_triton(packages):
    metadata = packages / "triton-3.6.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Name: triton\nVersion: 3.6.0\n")


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """The command with compilers by rule: (fields of Binary for each version) -> exit status, output."""
    put_triton(folder)

    def command(**fields):
        def compiled(device, jobs, workers, packages):
            version = "old" if packages else "new"
            return [Binary(device, job, **{**GOOD, **fields.get(version, {})}) for job in jobs]

        monkeypatch.setattr(machine_versions, "compile_for", compiled)
        arguments = ["machine_versions.py", "--only", "h200", "--packages", str(folder)]
        monkeypatch.setattr(sys, "argv", arguments)
        return machine_versions.main(), capsys.readouterr().out

    return command


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"new": SPILLING}, "4 local accesses, 16 bytes a thread"),
        ({"new": {"counts": {"cross-lane": 17}}}, "17 cross-lane instructions, 0 under the Triton"),
        ({"new": {"counts": {"cross-lane": 16}}}, ""),
        ({"new": {"counts": {"cross-lane": 130}}, "old": {"counts": {"cross-lane": 100}}}, ""),
        ({"new": {"counts": {"cross-lane": 131}}, "old": {"counts": {"cross-lane": 100}}}, "131 cross-lane"),
        ({"new": {"occupancy": 1}}, "1 warps on a compute unit"),
        ({"new": {"threads": 0, "problems": ("no way",)}}, "no way"),
        ({"new": {"threads": 0, "problems": ("no way",)}, "old": {"occupancy": 1}}, "no way"),
        # where the config was measured: what its time holds
        ({"old": SPILLING}, ""),
        ({"new": SPILLING, "old": SPILLING}, ""),
        ({"new": {**SPILLING, "spill_bytes": 21}, "old": SPILLING}, "21 bytes a thread"),
        ({"new": {"occupancy": 1}, "old": {"occupancy": 1}}, ""),
        ({"new": {"occupancy": 1}, "old": {"occupancy": 2}}, "1 warps on a compute unit"),
    ],
)  # fmt: skip
def test_worse_code_than_that_which_was_chosen_is_a_failure(run, fields, said):
    status, output = run(**fields)
    lines = [line for line in output.splitlines() if " programs in " not in line]
    assert status == bool(said)
    assert len(lines) == bool(said)
    assert said in output
    assert all(line.startswith("h200, Triton 3.9: ") for line in lines)


def test_folders_without_a_triton_are_named(tmp_path):
    with pytest.raises(SystemExit, match="no Triton there"):
        machine_versions.at_hand([str(tmp_path)])


def test_folders_are_found_from_wherever_a_process_starts(tmp_path, monkeypatch):
    """A base commit's tree had no .venv/helion-1.5.0, and Helion 1.5.1 made its programs."""
    put_triton(tmp_path / "old")
    monkeypatch.chdir(tmp_path)
    folders = machine_versions.at_hand(["old:helion"])["3.6"]
    assert folders == (str(tmp_path / "old"), str(tmp_path / "helion"))


def test_the_folders_come_before_what_is_installed(tmp_path):
    environment = Compiler("h200", tmp_path, 1.0, packages=("/an/old/triton", "/an/old/helion")).environment
    assert environment["PYTHONPATH"].startswith("/an/old/triton:/an/old/helion:")
