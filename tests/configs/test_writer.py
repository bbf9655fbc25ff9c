"""Files that several tuners write, that break, or come from elsewhere: nothing is lost, reading goes on."""

from __future__ import annotations

import json
import threading
import time
import timeit
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import torch
from stored import KERNEL, entry, file_of

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS, kernel_calls
from helion_sinkhorn.lab.tuning import writer
from helion_sinkhorn.lab.tuning.groups import jsonable
from helion_sinkhorn.lab.tuning.provenance import device_block
from helion_sinkhorn.lab.workloads import tagged
from helion_sinkhorn.ops.sinkhorn import launch
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.kernel import candidates

BLOCK = device_block(DEVICES["h200"], "NVIDIA H200")
RUN = {"fingerprint": "0" * 16, "utc": "2026-01-01T00:00Z"}
HOW = 20, 1e-6, "deepseek", "rows"

pytestmark = pytest.mark.usefixtures("fresh_caches")


def read(folder):
    store.read.cache_clear()
    return store.read(folder, "h200", KERNEL)


@pytest.fixture
def path(tmp_path):
    """The file of the kernel; its folder is there."""
    path = tmp_path / "h200" / f"{KERNEL}.json"
    path.parent.mkdir()
    return path


def merge(folder, *entries, **run):
    writer.merge(folder, KERNEL, BLOCK, {**RUN, **run}, entries)


def test_entries_are_sorted_and_unused_runs_go(tmp_path, path):
    merge(tmp_path, entry(64), entry(8))
    merge(tmp_path, entry(8), entry(64), entry(16), seed=1)
    data = json.loads(path.read_text())
    assert [e["key"]["batch"] for e in data["entries"]] == [8, 16, 64]
    assert list(data["runs"]) == [writer.run_id({**RUN, "seed": 1})]
    assert path.read_text() == writer.text(data)


def test_a_key_has_an_entry_for_each_minor_version_of_triton(tmp_path, path):
    for version, us in (("3.9", 1.0), ("3.6", 2.0), ("3.9", 3.0)):
        merge(tmp_path, entry(8, us=us, triton=version), triton=f"{version}.0")
    data = json.loads(path.read_text())
    assert [(e["key"]["triton"], e["us"]) for e in data["entries"]] == [("3.6", 2.0), ("3.9", 3.0)]
    # a line each, so that another version's run changes no line of this one
    assert sum(line.startswith('  {"key"') for line in path.read_text().splitlines()) == 2
    assert [(e.batch, e.triton) for e in read(tmp_path)] == [(8, "3.6"), (8, "3.9")]


def test_nothing_compiled_replaces_anything_measured(tmp_path, path):
    merge(tmp_path, entry(8, evidence="compiled"), entry(64))
    merge(tmp_path, entry(8, us=2.0), entry(64, evidence="compiled", us=2.0))
    data = json.loads(path.read_text())
    assert [(e["evidence"], e["us"]) for e in data["entries"]] == [("measured", 2.0), ("measured", 1.0)]


def test_broken_files_are_kept_aside(tmp_path, path, caplog):
    contents = [
        "", '{"schema": 1, "entr', "[]", "[" * 9999, json.dumps(file_of([{}])),
        json.dumps(file_of([], device="b200")), json.dumps(file_of([], kernel="sinkhorn_backward")),
        json.dumps({**file_of([{**entry(0), "run": "r"}]), "runs": {"r": {}}}),
    ]  # fmt: skip
    for content in contents:
        path.write_text(content)
        merge(tmp_path, entry(8))
        assert [e.batch for e in read(tmp_path)] == [8]
    names = [".broken", *(f".broken.{k}" for k in range(1, len(contents)))]
    assert [path.with_suffix(name).read_text() for name in names] == contents
    assert len(caplog.records) == len(contents)


def test_a_link_stays_one(tmp_path, path):
    elsewhere = tmp_path / "elsewhere" / "mine.json"
    path.symlink_to(elsewhere)
    for batch in (8, 64):
        merge(tmp_path, entry(batch))
    assert path.is_symlink()
    assert len(json.loads(elsewhere.read_text())["entries"]) == 2
    assert [e.batch for e in read(tmp_path)] == [8, 64]
    elsewhere.write_text("of somebody else")
    with pytest.raises(ValueError, match=r"is a link to .*mine.json, which is not a tuning file"):
        merge(tmp_path, entry(8))
    assert path.is_symlink()
    assert elsewhere.read_text() == "of somebody else"


def test_what_is_no_file_is_an_error_and_stays(tmp_path, path):
    path.mkdir()
    with pytest.raises(OSError, match="not a regular file"):
        merge(tmp_path, entry(8))
    assert path.is_dir()


def test_what_killed_writers_left_is_cleared(tmp_path, path):
    litter, another = (path.with_name(f".{of}.abc.tmp") for of in (KERNEL, f"{KERNEL}_history"))
    for left in (litter, another):
        left.write_text("half a fi")
    merge(tmp_path, entry(8))
    assert not litter.exists()
    assert another.exists()


@pytest.mark.parametrize("schema", [2, "2", 1.5, 1.0, True, None])
def test_a_file_of_another_version_is_left_alone(tmp_path, path, schema):
    text = json.dumps({"schema": schema, "entries": "in another way"})
    path.write_text(text)
    said = rf"schema {schema!r}, this version writes 1: update helion_sinkhorn"
    with pytest.raises(ValueError, match=said):
        merge(tmp_path, entry(8))
    assert path.read_text() == text


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, path, monkeypatch, caplog):
    merge(tmp_path, entry(8))
    before = path.read_text()
    # no reader takes this one
    with pytest.raises(TypeError, match="config is"):
        merge(tmp_path, entry(64, config={"block_sizes": [[[64]]]}))
    monkeypatch.setattr(writer.os, "fsync", mock.Mock(side_effect=OSError("No space left on device")))
    with pytest.raises(OSError, match="No space"):
        merge(tmp_path, entry(16))
    assert path.read_text() == before
    assert not list(tmp_path.rglob("*.tmp"))
    assert caplog.records == []


def test_sixteen_threads_at_the_first_call(tmp_path, path, monkeypatch, caplog):
    path.write_text("{")
    monkeypatch.setattr(store, "folders", lambda: [tmp_path])
    x, barrier, slowly = torch.randn(64, 4, 4), threading.Barrier(16), json.loads
    monkeypatch.setattr(store.json, "loads", lambda *a, **k: time.sleep(0.05) or slowly(*a, **k))

    def call(_):
        barrier.wait()
        return launch.forward(x, *HOW, torch.float32)

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(call, range(16)))
    assert all(torch.equal(r, results[0]) for r in results)
    assert not door.choose(KERNELS[KERNEL], launch.call_of(x, *HOW), 64, DEVICES["h200"]).stored
    assert len(caplog.records) == 1


def test_a_warm_choice_costs_less_than_two_microseconds():
    call = launch.call_of(torch.randn(64, 4, 4), *HOW)
    arguments = KERNELS["sinkhorn_forward"], call, 64, DEVICES["h200"]
    door.choose(*arguments)
    assert min(timeit.repeat(lambda: door.choose(*arguments), number=2000, repeat=20)) / 2000 < 2e-6


@pytest.mark.parametrize("out", [["--out", "/a/folder of mine"], ["--out=/a/folder"], []])
def test_recorded_commands_name_no_folder(out):
    said = writer.command("helion_sinkhorn", ["tune", "--device", "h200", *out, "--only", "_4x4_"])
    assert said == "helion_sinkhorn tune --device h200 --only _4x4_"


@pytest.mark.parametrize("device", DEVICES)
def test_every_config_that_the_tuner_tries_comes_back_as_it_is(tmp_path, device):
    """Those with a list in a list too, such as loop_orders."""
    tried = defaultdict(set)
    for name, call in {call for w in tagged("tune", object) for call in kernel_calls(w)}:
        tried[name].update((c.config, c.variant) for c in candidates(KERNELS[name], call, DEVICES[device]))
    for name, choices in tried.items():
        stored = sorted(choices, key=repr)
        entries = [
            entry(1 + k, config=jsonable(config), variant=jsonable(variant))
            for k, (config, variant) in enumerate(stored)
        ]
        writer.merge(tmp_path, name, device_block(DEVICES[device], device), RUN, entries)
        reread = store.read(tmp_path, device, name)
        assert [(dict(e.config), dict(e.variant)) for e in reread] == [(dict(c), dict(v)) for c, v in stored]
