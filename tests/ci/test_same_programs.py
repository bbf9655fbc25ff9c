"""Stored entries after a change of shared source: equal programs, and which runs get the new fingerprint."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import stored

pytest.importorskip("triton")

from ci import same_programs
from helion_sinkhorn.configs import store
from helion_sinkhorn.lab.tuning import writer

KERNEL, OTHER = "sinkhorn_forward", "sinkhorn_backward"
OLD, NEW = "0" * 16, "1" * 16
MODULE = '''
import triton

@triton.jit
def _kernel(x, n, BLOCK: tl.constexpr):
    # src[kernels.py:7]: where it is from
    """What it is."""
    value = 1.5
    tl.store(x + tl.arange(0, BLOCK), value)

def kernel(x, *, _launcher):
    _launcher(_kernel, (triton.cdiv(x.size(0), 32),), x, x.size(0), 32, num_warps=1)
'''


@pytest.mark.parametrize(
    ("old", "new", "alike"),
    [
        ("# src[kernels.py:7]: where it is from", "# elsewhere", True),
        ("What it is.", "What else it is.", True),
        ('    """What it is."""\n', "", True),
        ("BLOCK), value", "BLOCK),\n        value", True),
        ("value", "load", True),
        ("value)", "other)", False),
        # of the host function the launch tells
        ("x.size(0), 32)", "len(x), 32)", True),
        ("1.5", "1.50", True),
        ("1.5", "1.25", False),
        ("BLOCK: tl.constexpr", "BLOCK", False),
        ("import triton\n", "import triton\n_OFFSET = tl.constexpr(1)\n", False),
    ],
)
def test_code_is_compared_as_triton_reads_it(old, new, alike):
    changed = MODULE.replace(old, new)
    assert changed != MODULE
    assert (same_programs.device_code(changed) == same_programs.device_code(MODULE)) == alike


@pytest.mark.parametrize(
    ("grid", "size", "options"),
    [(3, 7, {}), (2, 8, {}), (2, 7, {"num_warps": 2}), (2, 7, {"num_stages": 1}), (2, 7.0, {})],
)
def test_another_launch_is_a_difference(grid, size, options):
    def said(grid, size, options):
        launch = same_programs.launch_of("_kernel", (grid,), (size, 32), {"num_warps": 1, **options})
        return {"code": "code", "launch": launch}

    usual = said(2, 7, {})
    assert same_programs.difference(usual, usual) == ""
    assert same_programs.difference(usual, said(grid, size, options)).startswith("launch: ")


def test_a_difference_shows_its_lines():
    assert same_programs.difference({"code": "a\nb\nc"}, {"code": "a\nB\nc"}) == "code: -b | +B"
    assert same_programs.difference({"code": "a", "launch": "b"}, {"problem": "E: no"}) == "problem: +E: no"


def entry(batch, run, warps=1, triton=None):
    config = {"block_sizes": [32], "num_warps": warps}
    return {**stored.entry(batch, config=config, triton=triton or store.triton_minor()), "run": run}


def write(kernel, fingerprints, entries, *folders):
    """Write a file of runs with these fingerprints into each; the entries name their runs by number."""
    runs = [{"fingerprint": f, "utc": f"2026-01-0{k + 1}T00:00Z"} for k, f in enumerate(fingerprints)]
    names = [writer.run_id(run) for run in runs]
    entries = [{**e, "run": names[e["run"]]} for e in entries]
    data = {**stored.file_of(entries, kernel=kernel), "runs": dict(sorted(zip(names, runs, strict=True)))}
    for folder in folders:
        path = folder / "tuning_cache" / "h200" / f"{kernel}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(writer.text(data))
    return path


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """The command over two trees, whose programs are in `answers`, by tree and (kernel, batch)."""
    base, here = tmp_path / "base", tmp_path / "here"
    answers = {"base": {}, "here": {}}

    def generate(trees, programs, versions, workers):
        assert trees == [base, here]
        assert {p.triton for p in programs} <= set(versions)
        usual = {"code": "code", "launch": "launch"}
        asked = [(p, batch) for p, batches in programs.items() for batch in batches]
        return [{(p, b): answers[t.name].get((p.kernel, b), usual) for p, b in asked} for t in trees]

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["same_programs.py", "--base", "HEAD", *arguments])
        status = same_programs.main()
        return status, capsys.readouterr().out

    monkeypatch.setattr(same_programs, "ROOT", here)
    monkeypatch.setattr(same_programs, "checked_out", lambda commit: contextlib.nullcontext(base))
    monkeypatch.setattr(same_programs, "fingerprints", lambda tree: {KERNEL: OLD, OTHER: OLD})
    monkeypatch.setattr(same_programs, "fingerprint", lambda kernel: NEW)
    monkeypatch.setattr(same_programs, "generate", generate)
    run.base, run.here, run.both, run.answers = base, here, (base, here), answers
    return run


def test_nothing_is_generated_where_no_source_changed(command):
    write(KERNEL, [NEW], [entry(64, 0)], command.here)
    assert command() == (0, "every entry is of this tree's source\n")


def test_restamping_renames_runs(command):
    path = write(KERNEL, [OLD, OLD], [entry(64, 0), entry(128, 1), entry(256, 0)], *command.both)
    before = json.loads(path.read_text())
    status, said = command()
    assert status == 0
    assert json.loads(path.read_text()) == before
    assert command("--restamp")[0] == 0
    after = json.loads(path.read_text())
    assert path.read_text() == writer.text(after)
    assert list(after["runs"]) == sorted(after["runs"])
    for name, run in after["runs"].items():
        assert name == writer.run_id(run)
        assert run["fingerprint"] == NEW
    for old, new in zip(before["entries"], after["entries"], strict=True):
        assert {**old, "run": new["run"]} == new
        assert after["runs"][new["run"]] == {**before["runs"][old["run"]], "fingerprint": NEW}
    assert command() == (0, "every entry is of this tree's source\n")
    assert [line.split() for line in said.splitlines()[1:2]] == [["h200", KERNEL, "3", "3", "0", "0"]]


def test_a_file_with_a_difference_is_left_alone(command):
    entries = [entry(64, 0), entry(128, 1)]
    path, other = (write(kernel, [OLD, OLD], entries, *command.both) for kernel in (KERNEL, OTHER))
    before = path.read_text()
    command.answers["here"][KERNEL, 128] = {"code": "other", "launch": "launch"}
    status, said = command("--restamp")
    assert status == 1
    assert path.read_text() == before
    assert NEW in other.read_text()
    assert OLD not in other.read_text()
    assert f"different: h200 {KERNEL} " in said
    assert "code: -code | +other" in said
    assert said.splitlines()[-2:] == [f"h200 {KERNEL}: left unchanged", f"h200 {OTHER}: restamped"]


def test_what_was_not_compared_keeps_its_fingerprint(command):
    """Another config, an entry of one tree alone, one that neither generates, a source of neither tree."""
    stale = "2" * 16
    runs, same = [OLD, OLD, OLD, OLD, stale, OLD], [entry(1, 0), entry(8, 3), entry(16, 4)]
    write(KERNEL, runs, [*same, entry(2, 1), entry(32, 5)], command.base)
    path = write(KERNEL, runs, [*same, entry(2, 1, warps=2), entry(4, 2)], command.here)
    before = json.loads(path.read_text())
    for tree in command.answers.values():
        tree[KERNEL, 8] = {"problem": "E: no"}
    status, said = command("--restamp")
    assert status == 0
    assert said.splitlines()[1].split() == ["h200", KERNEL, "6", "1", "0", "5"]
    reasons = "another config", "not in the base commit", "E: no", "in the base commit only"
    for why in (*reasons, f"its source {stale}"):
        assert said.count(why) == 1
    after = json.loads(path.read_text())
    stamped = [e["key"]["batch"] for e in after["entries"] if after["runs"][e["run"]]["fingerprint"] == NEW]
    assert stamped == [1]
    assert after["entries"][1:] == before["entries"][1:]


def test_a_run_with_one_entry_not_compared_keeps_its_fingerprint(command):
    write(KERNEL, [OLD], [entry(1, 0)], command.base)
    path = write(KERNEL, [OLD], [entry(1, 0), entry(2, 0)], command.here)
    before = path.read_text()
    status, said = command("--restamp")
    assert (status, path.read_text()) == (0, before)
    # where none was compared, nothing was found
    write(KERNEL, [OLD], [entry(2, 0)], command.here)
    assert command()[0] == 2
    assert said.endswith(f"h200 {KERNEL}: left unchanged\n")


def test_an_entry_is_of_the_triton_that_generates_it(command, tmp_path):
    """One of a version that is not at hand is counted, and keeps its fingerprint."""
    path = write(KERNEL, [OLD, OLD], [entry(1, 0), entry(1, 1, triton="2.1")], *command.both)
    status, said = command("--restamp")
    assert status == 0
    _, counts, left, *_ = said.splitlines()
    assert counts.split() == ["h200", KERNEL, "2", "1", "0", "1"]
    assert left == "not compared: 1 entries of Triton 2.1; --packages FOLDER-WITH-IT compares them"
    runs = json.loads(path.read_text())["runs"].values()
    assert sorted(run["fingerprint"] for run in runs) == sorted([OLD, NEW])
    metadata = tmp_path / "there" / "triton-2.1.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: triton\nVersion: 2.1.0\n")
    assert command("--restamp", "--packages", str(tmp_path / "there"))[0] == 0
    assert {run["fingerprint"] for run in json.loads(path.read_text())["runs"].values()} == {NEW}


def test_programs_of_two_tritons_are_not_of_one_process():
    one = same_programs.Program("h200", KERNEL, "3.6", (), (), ())
    other = dataclasses.replace(one, triton="3.9")
    assert list(same_programs.pieces({one: {1}, other: {1}}, 1)) == [{one: {1}}, {other: {1}}]


def test_what_one_tree_alone_generates_is_different(command):
    write(KERNEL, [OLD], [entry(1, 0)], *command.both)
    command.answers["base"][KERNEL, 1] = {"problem": "E: no"}
    assert command()[0] == 1


@pytest.mark.nightly("a minute of Helion; which answers are alike is tested always")
def test_an_entry_is_generated_as_it_is_launched():
    """One process: two batches of a program, and one that no call has."""
    path = Path(same_programs.ROOT, "tuning_cache", "h200", "hc_pre_forward.json")
    first = store.entries_of(store.content(path), path)[0]
    program = same_programs.Program("h200", path.stem, "", first.key, first.config, first.variant)
    refused = dataclasses.replace(program, config=(("block_sizes", ()), ("num_warps", 1)))
    answers = same_programs.piece(same_programs.ROOT, {program: {64, 128}, refused: {64}}, [], lambda: None)
    assert set(answers) == {(program, 64), (program, 128), (refused, 64)}
    assert set(answers[refused, 64]) == {"problem"}
    small, large = answers[program, 64], answers[program, 128]
    assert small["code"] == large["code"]
    assert "@triton.jit" in small["code"]
    assert "#" not in small["code"]
    assert small["launch"] != large["launch"]
    assert f"num_warps={dict(program.config)['num_warps']}" in small["launch"].splitlines()


def test_the_base_commit_is_checked_out_and_removed(tmp_path, monkeypatch):
    def git(*words):
        mine = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        command = "git", "-c", "user.name=a", "-c", "user.email=a@b", *words
        return subprocess.check_output(command, cwd=tmp_path, env=mine, text=True)

    git("init", "--quiet")
    source = tmp_path / "ci" / "old.py"
    source.parent.mkdir()
    source.write_text("committed")
    git("add", ".")
    git("commit", "--quiet", "-m", "one")
    source.write_text("changed")
    monkeypatch.setattr(same_programs, "ROOT", tmp_path)
    with same_programs.checked_out("HEAD") as tree:
        assert (tree / "ci" / "old.py").read_text() == "committed"
        assert (tree / "ci" / "same_programs.py").exists()
    assert not tree.exists()
    assert len(git("worktree", "list").splitlines()) == 1
