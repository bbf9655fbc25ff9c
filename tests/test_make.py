"""The Makefile: its list of targets, and what its variables do."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from helion_sinkhorn.configs.device import DEVICES

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def made(*words: str) -> str:
    done = make(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_make_alone_lists_every_target_with_a_line():
    (phony, *_) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.M)
    listed = re.findall(r"^  ([a-z-]+) +\S.*$", made(), re.M)
    assert sorted(listed) == sorted(phony.split())
    assert made("help") == made()


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("demo", "-m benchmarks.demo --quick"), ("demo WHAT=model", "-m benchmarks.demo_model --quick"),
        ("emulate", "-m ci.emulate --quick"), ("emulate WHAT=mutants", "-m ci.mutants --quick"),
        ("test", "-m pytest -n 2"), ("test WHAT=jax", "-m pytest tests/test_examples.py -k jax"),
        ("test WHAT=models", "-m pytest tests/mhc/test_transformers.py tests/mhc/test_automodel.py"),
        ("test WHAT=servers", "-m pytest tests/mhc/test_servers.py"),
        ("lint WHAT=workflows", "check-jsonschema --builtin-schema"),
        ("bench", "-m benchmarks.bench sinkhorn --quick"),
        ("bench WHAT=residual_path", "-m benchmarks.bench residual_path --quick"),
        ("bench WHAT=tritonbench", "-m tritonbench_ops --op sinkhorn --mode $mode --quick"),
        ("study WHAT=backward", "-m benchmarks.study backward --quick"),
        ("accuracy", "-m ci.accuracy"), ("accuracy WHAT=parity", "-m ci.accuracy --parity"),
        ("attack", "-m ci.attack"), ("attack WHAT=tables", "-m ci.fault_tables --write docs/dev/results.md"),
        ("attack WHAT=cache", "-m pytest tests/configs/test_cache_attack.py"),
        ("equal", "-m ci.equal --quick"), ("equal WHAT=faults", "-m ci.equal.faults --quick"),
        ("machine", "-m ci.machine_terms"), ("machine WHAT=versions", "-m ci.machine_versions"),
        ("machine WHAT=programs", "-m ci.same_programs"), ("programs", "-m ci.programs"),
    ],
)  # fmt: skip
def test_what_names_the_command_of_a_target(words, command):
    assert command in made("-Bn", *words.split(), "ARGS=--quick")


@pytest.mark.parametrize(("target", "known"), [("machine", "programs terms versions"), ("study", "backward")])
def test_another_what_is_refused_with_those_there_are(target, known):
    done = make("-Bn", target, "WHAT=nothing")
    assert done.returncode == 2
    assert "nothing" in done.stderr
    assert known in done.stderr


def test_offline_is_the_tuner_s_word_alone():
    assert made("-Bn", "lint", "OFFLINE=1") == made("-Bn", "lint")
    assert "--offline" in made("-n", "tune", "DEVICE=h200", "OFFLINE=1")
    assert "--no-index --find-links somewhere" in made("-Bn", "lint", "WHEELS=somewhere")
    assert 'OFFLINE=1 is for `tune` alone, and means "without that GPU", not "without a network"' in made()


@pytest.mark.parametrize("words", [[], ["DEVICE=h2"]])
def test_tune_names_the_devices_before_it_builds_an_environment(words):
    done = make("-Bn", "tune", *words)
    assert done.returncode == 2
    assert not done.stdout
    assert f"one of: {' '.join(DEVICES)}." in done.stderr


def test_bench_tritonbench_runs_the_operator_that_is_named():
    runs = [made("-n", "bench", "WHAT=tritonbench", *words) for words in ([], ["OP=hc_pre", "MODES=bwd"])]
    assert "for mode in fwd bwd fwd_bwd fwd_no_grad; do" in runs[0]
    assert "--op sinkhorn --mode $mode" in runs[0]
    assert "for mode in bwd; do" in runs[1]
    assert "--op hc_pre --mode $mode" in runs[1]


def test_benchmarks_start_as_modules():
    assert not re.search(r"\$\(RUN\) benchmarks/", MAKEFILE)


def test_wheels_collects_every_extra_that_a_target_installs():
    collected = made("-n", "wheels")
    # of the other targets, and of ci/bootstrap.py
    extras = {*re.findall(r'-e "\.\[([a-z-]+)\]"', MAKEFILE), "test", "bench", "cpu-codegen", "oracle"}
    assert len(extras) > 4
    for extra in extras:
        assert re.search(rf"[\[,]{extra}[\],]", collected), extra
