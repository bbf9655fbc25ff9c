"""Devices, the stored configs, and which of them a call gets."""

from __future__ import annotations

import json
import logging
import os
import runpy
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from launches import at_an_h200, launching_as
from stored import FIELDS, KERNEL, VARIANT, entry, file_of, write

from helion_sinkhorn.configs import device, lookup, settings, store
from helion_sinkhorn.configs.device import DEVICES, match
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.tuning.groups import groups_of
from helion_sinkhorn.lab.workloads import tagged
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.kernel import candidates

FOLDERS = store.folders
KEY = store.key_of(FIELDS)


pytestmark = pytest.mark.usefixtures("fresh_caches")


@pytest.fixture
def shipped(monkeypatch, tmp_path):
    """An empty folder in the place of the one that comes with the package."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.setattr(
        store, "folders", lambda: [Path(settings.TUNING_DIR), folder] if settings.TUNING_DIR else [folder]
    )
    return folder


def served(batch=4096, key=KEY, device_key="h200"):
    return lookup.lookup(DEVICES[device_key], KERNEL, key, batch)


@pytest.fixture
def said(caplog):
    """A function that returns the only message of the test, which has this level."""

    def only(level: str) -> str:
        (record,) = caplog.records
        assert record.levelname == level
        return record.getMessage()

    return only


# Which device


@pytest.mark.parametrize(
    ("vendor", "arch", "units", "name", "key"),
    [
        # h100 and h200 differ by name alone
        ("nvidia", "sm90", 132, "NVIDIA H100 80GB HBM3", "h100"),
        ("nvidia", "sm90", 132, "NVIDIA H200", "h200"),
        # fewer units under the same name
        ("nvidia", "sm90", 114, "NVIDIA H100 PCIe", "h100"),
        # no name of ours: the units decide
        ("nvidia", "sm90", 132, "NVIDIA H800", "h100"),
        ("nvidia", "sm100", 148, "NVIDIA B200", "b200"),
        # its name holds the other's
        ("nvidia", "sm100", 152, "NVIDIA GB200", "gb200"),
        ("amd", "gfx942", 304, "AMD Instinct MI300X", "mi300x"),
        ("amd", "gfx942", 304, "AMD Radeon Graphics", "mi300x"),
        ("amd", "gfx950", 256, "AMD Instinct MI350X", "mi350"),
        ("amd", "gfx950", 256, "AMD Instinct MI350", "mi350"),
        ("amd", "gfx950", 256, "AMD Instinct MI355X", "mi355x"),
        # unknown: other units, other arch, and names that mean nothing under another arch or vendor
        ("nvidia", "sm90", 78, "NVIDIA H20", None),
        ("amd", "gfx942", 228, "AMD Instinct MI300A", None),
        ("nvidia", "sm89", 128, "NVIDIA GeForce RTX 4090", None),
        ("nvidia", "sm80", 132, "NVIDIA H100", None),
        ("amd", "sm90", 132, "NVIDIA H100", None),
    ],
)
def test_match(vendor, arch, units, name, key):
    matched = match(vendor, arch, units, name)
    assert (matched and matched.key) == key


def test_devices_table():
    assert all(key == d.key for key, d in DEVICES.items())
    # a family never spans vendors, or lookup would
    families = {(d.family, d.vendor) for d in DEVICES.values()}
    assert len(families) == len({family for family, _ in families})
    of_vendor = {"nvidia": ("ptx", 32), "amd": ("gcn", 64)}
    assert all((d.asm, d.warp_size) == of_vendor[d.vendor] for d in DEVICES.values())


@pytest.mark.parametrize(
    ("hip", "driver", "key"),
    [
        (None, {"major": 9, "minor": 0, "multi_processor_count": 132, "name": "NVIDIA H200"}, "h200"),
        (
            "7.2",
            {"gcnArchName": "gfx950:sramecc+", "multi_processor_count": 256, "name": "AMD Instinct MI355X"},
            "mi355x",
        ),
        (
            None,
            {
                "major": 8, "minor": 9, "multi_processor_count": 128, "name": "NVIDIA GeForce RTX 4090",
                "total_memory": 24 << 30, "shared_memory_per_block_optin": 101376, "warp_size": 32,
            },
            device.Device("sm89_128", "nvidia", "sm89", 128, 24, 32, 101376, "sm89"),
        ),
        (
            "7.2",
            {
                "gcnArchName": "gfx1201", "multi_processor_count": 64, "name": "AMD Radeon",
                "total_memory": 16 << 30, "warp_size": 32,
            },
            device.Device("gfx1201_64", "amd", "gfx1201", 64, 16, 32, 65536, "gfx1201"),
        ),
    ],
    ids=["H200", "MI355X", "unknown NVIDIA", "unknown AMD"],
)  # fmt: skip
def test_current_is_what_the_driver_reports(hip, driver, key, monkeypatch):
    """Unknown hardware gets a row of its own."""
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(**driver))
    assert device.current(0) == DEVICES.get(key, key)
    # the environment names another whatever the driver reports
    device.current.cache_clear()
    monkeypatch.setattr(settings, "DEVICE", "h100")
    assert device.current(0) is DEVICES["h100"]


def test_unknown_device_in_the_environment_says_which_are_known(monkeypatch):
    monkeypatch.setattr(settings, "DEVICE", "h300")
    said = "HELION_SINKHORN_DEVICE='h300' is not a known device; use one of h100, h200"
    with pytest.raises(ValueError, match=said):
        device.current(0)


def test_settings_read_the_environment(monkeypatch):
    for named, folder in (("", ""), ("b200", "/some/folder")):
        values = runpy.run_path(settings.__file__)
        assert (values["DEVICE"], values["TUNING_DIR"]) == (named, folder)
        monkeypatch.setenv("HELION_SINKHORN_DEVICE", "b200")
        monkeypatch.setenv("HELION_SINKHORN_TUNING_DIR", "/some/folder")


# What is stored


def test_folders_are_the_user_s_and_the_shipped_one(monkeypatch, tmp_path):
    monkeypatch.setattr(settings, "TUNING_DIR", "")
    (shipped,) = store.folders()
    assert (shipped.name, (shipped / "README.md").is_file()) == ("tuning_cache", True)
    monkeypatch.setenv("HOME", str(tmp_path))
    for named in (str(tmp_path), "~"):
        monkeypatch.setattr(settings, "TUNING_DIR", named)
        assert store.folders() == [tmp_path, shipped]


def test_read_returns_what_was_written(tmp_path, caplog):
    path = write(tmp_path, [entry(1024), entry(8, evidence="compiled")])
    first, second = store.read(tmp_path, "h200", KERNEL)
    assert first == store.Entry(
        KEY, 1024, (("block_sizes", (128,)), ("num_warps", 4)), store.hashable(VARIANT),
        "measured", str(path),
    )  # fmt: skip
    assert (second.batch, second.evidence) == (8, "compiled")
    # a file that is not there is no news
    assert store.read(tmp_path, "h100", KERNEL) == store.read(tmp_path / "nowhere", "h200", KERNEL) == ()
    assert caplog.records == []


def without(name, fields):
    return {k: v for k, v in fields.items() if k != name}


GOOD = file_of([entry()])
BROKEN = {
    "truncated": json.dumps(GOOD).encode()[:-20],
    "not text": b"\xff\xfe\x00\x80",
    "nested": b"[" * 99999,
    "a list": [],
    "no schema": without("schema", GOOD),
    "foreign schema": {**GOOD, "schema": 999},
    "schema is a float": {**GOOD, "schema": 1.0},
    "schema is true": {**GOOD, "schema": True},
    "of another kernel": {**GOOD, "kernel": "sinkhorn_backward"},
    "of another device": {**GOOD, "device": {"key": "b200"}},
    "of no device": without("device", GOOD),
    "entries are null": file_of(None),
    "an entry is text": file_of([entry(), "text"]),
    "two entries for one key": file_of([entry(8), entry(8)]),
    "no config": file_of([without("config", entry())]),
    "batch is text": file_of([entry("many")]),
    "batch is zero": file_of([entry(0)]),
    "batch is true": file_of([entry(True)]),
    "batch has more than 64 bits": file_of([entry(1 << 63)]),
    "version is a number": file_of([entry(triton=3.6)]),
    "a value within a value": file_of([entry(config={"block_sizes": [[[64]]]})]),
    "names within a value": file_of([entry(config={"block_sizes": {"m": 64}})]),
    "config is a list": file_of([entry(config=[1, 2])]),
    "variant is text": file_of([entry(variant="packed")]),
    "evidence is a number": file_of([entry(evidence=1)]),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_file_it_cannot_read_is_one_warning_and_no_entries(broken, shipped, caplog, said):
    caplog.set_level(logging.INFO, "helion_sinkhorn")
    path = write(shipped, [])
    content = BROKEN[broken]
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    for batch in (1, 4096, 8192):
        assert served(batch) is None
    assert store.read(shipped, "h200", KERNEL) == ()
    for words in (str(path), "default config is used", f"make tune DEVICE=h200 KERNEL={KERNEL}"):
        assert words in said("WARNING")


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_folder_or_pipe_in_the_place_of_the_file_is_one_warning(make, shipped, said):
    path = write(shipped, [])
    path.unlink()
    make(path)
    entries = []
    # whoever opens a pipe waits for its writer
    reader = threading.Thread(target=lambda: entries.append(served()), daemon=True)
    reader.start()
    reader.join(10)
    assert entries == [None]
    assert "not a regular file" in said("WARNING")


def test_a_user_s_folder_that_is_not_there_is_one_warning(monkeypatch, tmp_path, said):
    monkeypatch.setattr(settings, "TUNING_DIR", str(tmp_path / "nowhere"))
    for batch in (4096, 5000, 6000):
        assert served(batch).path.startswith(str(FOLDERS()[-1]))
    assert f"HELION_SINKHORN_TUNING_DIR={tmp_path / 'nowhere'} is not a folder" in said("WARNING")


# Which entry


def test_exact_key(shipped):
    others = {"form": "log"}, {"n": 8}, {"dtype": "bfloat16"}, {"iters": 10}
    stored = [FIELDS, *({**FIELDS, **other} for other in others)]
    write(shipped, [entry(fields=fields, config={"num_warps": i}) for i, fields in enumerate(stored)])
    configs = [served(key=store.key_of(fields)).config for fields in stored]
    assert configs == [(("num_warps", i),) for i in range(len(stored))]
    for other in ({"first": "cols"}, {"m": 8}):
        assert served(key=store.key_of({**FIELDS, **other})) is None


BATCHES, TRITONS = (
    {"h200": {64: "", 512: "", 4096: ""}},
    {"h200": {128: "", 64: "3.6", 512: "3.8", 400: "3.9"}},
)
RELATED = {"h200": {4096: "3.6"}, "h100": {4096: "3.9"}}


@pytest.mark.parametrize(
    ("running", "stored", "expected"),
    [
        # the nearest in log2: the mean of 64 and 512 is 181
        ("", BATCHES, {"h200": {32: 64, 100: 64, 180: 64, 182: 512, 1024: 512, 2048: 4096, 4096: 4096}}),
        # the smallest, of few matrices, for fewer, and the largest for more
        ("", BATCHES, {"h200": {16: 64, 15: 64, 1: 64, 0: 64, 16384: 4096, 16385: 4096, 1 << 30: 4096}}),
        # one for many matrices for no few, which are more than four times away
        ("", {"h200": {512: ""}}, {"h200": {128: 512}, None: {127: None, 1: None, 0: None}}),
        # a relative's where tuning did not reach
        (
            "", {"h200": {128: "", 1024: ""}, "h100": {128: "", 1024: "", 1 << 20: ""}},
            {"h200": {64: 128, 2048: 1024}, "h100": {1 << 20: 1 << 20, 1 << 24: 1 << 20}},
        ),
        # of own and a relative's the one of the first Triton
        *((running, RELATED, {"h100": {4096: 4096}}) for running in ("3.7", "3.8", "3.9", "3.10")),
        *((running, RELATED, {"h200": {4096: 4096}}) for running in ("3.5", "3.6")),
        ("3.9", {"h200": {4096: "3.9"}, "h100": {4096: "3.9"}}, {"h200": {4096: 4096}}),
        # the running Triton's before nearer batches, then later ones, then earlier ones
        *((running, TRITONS, {"h200": {200: 64}}) for running in ("3.6", "3.5", "3.1")),
        *((running, TRITONS, {"h200": {200: 512}}) for running in ("3.8", "3.7")),
        *((running, TRITONS, {"h200": {200: 400}}) for running in ("3.9", "3.10", "4.0")),
        ("3.9", {"h200": {4096: "3.9", 2: "3.1"}}, {"h200": {1: 2}}),
        # without a known Triton that which does not say either, or the newest
        ("", TRITONS, {"h200": {200: 128}}),
        *((running, {"h200": {128: "3.6", 64: "3.10", 256: "3.9"}}, {"h200": {128: 64}})
          for running in ("", "main")),
        # no small one of the running Triton for a full device
        ("3.9", {"h200": {4096: "3.6", 64: "3.9"}}, {"h200": {64: 64, 256: 64, 1024: 4096, 1 << 20: 4096}}),
    ],
)  # fmt: skip
def test_which_entry_is_found(running, stored, expected, shipped, monkeypatch):
    """Versions of Triton by batch are stored for each device, and batches are found by those asked for."""
    monkeypatch.setattr(store, "triton_minor", lambda: running)
    for name, versions in stored.items():
        write(shipped, [entry(b, **({"triton": v} if v else {})) for b, v in versions.items()], name)
    for name, batches in expected.items():
        entries = {batch: served(batch) for batch in batches}
        assert {batch: e and e.batch for batch, e in entries.items()} == batches
        assert {e and Path(e.path).parent.name for e in entries.values()} == {name}


def test_user_s_folder_comes_first(shipped, monkeypatch, tmp_path):
    user = tmp_path / "user"
    monkeypatch.setattr(settings, "TUNING_DIR", str(user))
    write(user, []).write_text("a broken file leaves the others in use")
    write(shipped, [entry(4096), entry(64)])
    assert served().path.startswith(str(shipped))
    door.forget()
    write(user, [entry(2048)])
    # even where the shipped batch is nearer
    assert served(4096).path.startswith(str(user))
    # and the shipped one still serves what the user never tuned
    assert served(64).path.startswith(str(shipped))


def test_family_stands_in_and_says_so_once(shipped, said, caplog):
    caplog.set_level(logging.INFO, "helion_sinkhorn")
    write(shipped, [entry(triton=store.triton_minor())], "h100")
    for _ in range(3):
        assert served().path == str(shipped / "h100" / f"{KERNEL}.json")
    assert "no entry for h200, serving the one tuned on h100" in said("INFO")


@pytest.mark.parametrize("name", ["hc_mixes_split", "hc_boundary_split"])
def test_what_takes_no_tokens_is_tuned_and_looked_up_by_its_own_size(name, shipped):
    """A launch splits 24 rows of fn; workloads, by which `show`, `warm` and the tuner go, count tokens."""
    row = KERNELS[name]
    (call, *_) = {group.call for group in groups_of(tagged("tune", object), name)}
    assert {group.batches for group in groups_of(tagged("tune", object), name)} == {(24,)}
    of_size, of_tokens = (dict(c.config) for c in candidates(row, call, DEVICES["h200"])[:2])
    assert of_size != of_tokens
    fields = {**dict(call.key), "triton": store.triton_minor()}
    write(shipped, [entry(24, fields, of_size, {}), entry(1 << 13, fields, of_tokens, {})], kernel=name)
    for tokens in (1, 24, 1 << 13, 1 << 20):
        choice = door.choose(row, call, tokens, DEVICES["h200"])
        assert choice.stored
        assert dict(choice.config) == of_size


@pytest.mark.parametrize("asked", DEVICES)
def test_nothing_crosses_vendors_or_families(shipped, asked):
    for key, d in DEVICES.items():
        if d.family != DEVICES[asked].family:
            write(shipped, [entry()], key)
    assert served(device_key=asked) is None


# What a launch takes


def chosen(batch=4096, n=4, n_iters=20):
    call = SinkhornCall(True, 1, "float32", n, 4, n_iters)
    return door.choose(KERNELS[KERNEL], call, batch, DEVICES["h200"])


def test_choose_takes_the_stored_config(shipped):
    path = write(shipped, [entry()])
    choice = chosen()
    assert (choice.kernel, dict(choice.config), dict(choice.variant)) == (
        KERNEL, {"block_sizes": (128,), "num_warps": 4}, {**VARIANT, "thread": (4, 4)},
    )  # fmt: skip
    assert choice.source == f"{path} (measured)"
    values = "block_sizes=(128,), num_warps=4, ordered=False, paired=False, pivoted=True, thread=(4, 4)"
    assert str(choice) == f"{KERNEL} ({values}) from {path} (measured)"


def test_other_iterations_take_the_tuned_config_where_their_space_holds_it(shipped, caplog):
    write(shipped, [entry()])
    assert chosen(n_iters=5).config == chosen().config != chosen(n=8, n_iters=5).config
    # after softmax and one trail step nothing is left to pivot: such a variant is not in that call's space
    assert not chosen(n_iters=1).stored
    assert not caplog.records
    own = {**FIELDS, "iters": 5}
    write(shipped, [entry(), entry(fields=own, config={"block_sizes": [32], "num_warps": 1})])
    door.forget()
    assert dict(chosen(n_iters=5).config)["num_warps"] == 1


def test_another_triton_s_entry_is_said_once_and_named(shipped, monkeypatch, caplog, said):
    caplog.set_level(logging.INFO, "helion_sinkhorn")
    path = write(shipped, [entry(64, triton="3.6"), entry(4096, triton="3.6"), entry(64, triton="3.9")])
    monkeypatch.setattr(store, "triton_minor", lambda: "3.9")
    assert chosen(batch=64).source == f"{path} (measured, Triton 3.9)"
    assert caplog.records == []
    assert {chosen(batch=b).source for b in (2048, 4096)} == {f"{path} (measured, Triton 3.6)"}
    assert "no entry of Triton 3.9 for some calls, using entries of Triton 3.6" in said("INFO")


def launched(monkeypatch, batch, n=4, m=4, n_iters=20):
    """A launch on an H200."""
    launching_as(monkeypatch, device_at=at_an_h200)
    call = SinkhornCall(True, 1, "float32", n, m, n_iters)
    door.launch_chosen(KERNELS[KERNEL], call, batch, torch.empty(0), lambda chosen: None)


def test_a_call_that_only_another_device_is_tuned_for_names_the_command(shipped, monkeypatch, caplog, said):
    caplog.set_level(logging.INFO, "helion_sinkhorn")
    write(shipped, [entry(), entry(fields={**FIELDS, "iters": 7})], device="mi350")
    # one that no device is tuned for says nothing
    launched(monkeypatch, 24, n=5, m=3)
    assert caplog.records == []
    for batch, n_iters in ((24, 20), (24, 20), (4096, 20), (24, 7)):
        launched(monkeypatch, batch, n_iters=n_iters)
    assert said("WARNING") == (
        f"{KERNEL} is not tuned for h200 and runs with its default config; "
        f"`make tune DEVICE=h200 KERNEL={KERNEL}` tunes it"
    )


def test_a_call_far_from_every_tuned_batch_is_no_untuned_one(shipped, monkeypatch, caplog, said):
    """`make tune` would leave it as it is."""
    caplog.set_level(logging.INFO, "helion_sinkhorn")
    monkeypatch.setattr(store, "triton_minor", lambda: "3.9")
    write(shipped, [entry(512, triton="3.6"), entry(1024, triton="3.6")])
    for batch in (24, 8):
        launched(monkeypatch, batch)
    assert said("INFO") == (
        f"{KERNEL} is tuned for h200 at batch 512, 1024 (Triton 3.6), and some calls have a batch more than "
        "4 times away from each: they run with its default config"
    )
    caplog.clear()
    launched(monkeypatch, 128)
    assert "using entries of Triton 3.6" in said("INFO")
