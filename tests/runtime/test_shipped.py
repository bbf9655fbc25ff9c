"""Generated code that a wheel brings: when it is used, and that Helion is not imported then."""

from __future__ import annotations

import importlib.metadata
import os
import zipfile

import pytest
import torch
from forked import python

from helion_sinkhorn.configs import settings, store
from helion_sinkhorn.runtime import program_cache, shipped

CPU = torch.device("cpu")
DECIDED = "a config", "a signature"


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """An archive with one program, which returns 41."""
    path = tmp_path / "programs.zip"
    monkeypatch.setattr(shipped, "ARCHIVE", path)
    monkeypatch.setattr(settings, "CACHE_DIR", str(tmp_path / "kept"))
    for name, _ in program_cache.changing():
        monkeypatch.delenv(name)
    shipped.write({shipped.member("host", DECIDED, CPU): "def host():\n    return 41\n"}, path)
    shipped.members.cache_clear()
    yield path
    shipped.members.cache_clear()


def test_a_program_is_found_by_what_decides_its_code(archive, monkeypatch):
    assert shipped.program("host", DECIDED, CPU)() == 41
    assert shipped.program("host", ("another config", DECIDED[1]), CPU) is None
    assert shipped.program("other", DECIDED, CPU) is None
    monkeypatch.setattr(program_cache, "target", lambda device: ("another device",))
    assert shipped.program("host", DECIDED, CPU) is None


@pytest.mark.parametrize(
    ("place", "version", "is_found"),
    [(0, (3, 99), True), (1, "9.9", True), (2, "{minor}.99", True), (2, "9.9.0", False), (3, "9.9", False)],
    ids=["Python", "torch", "a patch of Triton", "Triton", "Helion"],
)
def test_versions_that_decide(archive, monkeypatch, place, version, is_found):
    versions = list(program_cache.versions())
    if place == 2:
        version, installed = version.format(minor=store.triton_minor()), importlib.metadata.version
        monkeypatch.setattr(store, "installed_triton", store.installed_triton.__wrapped__)
        monkeypatch.setattr(
            importlib.metadata, "version", lambda name: version if name == "triton" else installed(name)
        )
    versions[place] = version
    monkeypatch.setattr(program_cache, "versions", lambda: tuple(versions))
    assert (shipped.program("host", DECIDED, CPU) is not None) is is_found


def emptied(path):
    with zipfile.ZipFile(path, "w"):
        pass


@pytest.mark.parametrize("then", [os.remove, lambda path: path.write_bytes(b"PK"), emptied])
def test_an_archive_that_changes_beneath_a_process_is_no_error(archive, then):
    """An upgrade of the package: the stored config of the call was taken for what had failed."""
    assert shipped.program("host", DECIDED, CPU)() == 41
    then(archive)
    assert shipped.program("host", DECIDED, CPU) is None


def test_programs_of_another_source_are_not_used(archive, monkeypatch):
    monkeypatch.setattr(program_cache, "sources", lambda: "another digest")
    assert shipped.program("host", DECIDED, CPU) is None
    shipped.members.cache_clear()
    assert not shipped.members()


def test_what_changes_generated_code_keeps_them_from_being_used(archive, monkeypatch):
    monkeypatch.setenv("HELION_STATIC_SHAPES", "1")
    assert shipped.program("host", DECIDED, CPU) is None
    monkeypatch.delenv("HELION_STATIC_SHAPES")
    monkeypatch.setattr(settings, "CACHE_DIR", "off")
    assert shipped.program("host", DECIDED, CPU) is None


def test_a_package_without_an_archive_or_with_a_damaged_one_generates(archive):
    archive.write_bytes(archive.read_bytes()[:-30])
    shipped.members.cache_clear()
    assert shipped.program("host", DECIDED, CPU) is None
    archive.unlink()
    shipped.members.cache_clear()
    assert shipped.program("host", DECIDED, CPU) is None


def damages(good: bytes):
    """Archives with one field changed: of the central directory, of a local header, of the program."""
    directory = good.index(b"PK\x01\x02")
    for at, value in (
        (directory + 6, 148), (directory + 8, 1), (directory + 10, 99), (directory + 10, 12),
        (directory + 10, 14), (directory + 42, 7), (0, 0), (30, 0), (directory - 5, 255),
    ):  # fmt: skip
        yield good[:at] + bytes([good[at] ^ 1 if good[at] == value else value]) + good[at + 1 :]


def test_of_a_damaged_archive_nothing_is_used_and_one_warning_says_so(archive, caplog, monkeypatch):
    for damaged in damages(archive.read_bytes()):
        archive.write_bytes(damaged)
        shipped.members.cache_clear()
        monkeypatch.setattr(shipped, "_damaged", set())
        caplog.clear()
        for _ in range(2):
            assert shipped.program("host", DECIDED, CPU) is None
        assert [r.levelname for r in caplog.records] == ["WARNING"]
        assert "Install the package anew" in caplog.text


def test_programs_are_added_to_those_of_the_same_source(tmp_path, monkeypatch):
    """In any order they make the same bytes."""
    one, two = {"b.py": "2\n"}, {"a.py": "1\n"}
    for path, turns in ((tmp_path / "one.zip", (one, two)), (tmp_path / "two.zip", (two, one))):
        for programs in turns:
            shipped.write(programs, path)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert archive.namelist() == ["a.py", "b.py"]
    monkeypatch.setattr(program_cache, "sources", lambda: "another digest")
    shipped.write({"c.py": "3\n"}, tmp_path / "one.zip")
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert archive.namelist() == ["c.py"]


LAUNCHED = """
import sys
from pathlib import Path
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.presented import present_device
from helion_sinkhorn.runtime import generated, shipped
from helion_sinkhorn.runtime.dispatch import signature
from helion_sinkhorn.lab.tuning import warm
from helion_sinkhorn.lab.workloads import WORKLOADS

shipped.ARCHIVE = Path(sys.argv[1])
present_device(DEVICES["h200"])
for kernel, arguments in warm.launches(WORKLOADS["deepseek_4x4_fp32_b128"], DEVICES["h200"]):
    with FakeTensorMode():
        given = [
            torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="cuda:0")
            if isinstance(a, torch.Tensor) else a
            for a in arguments
        ]
        host = generated.host_function(kernel, given, signature(tuple(given)))
    print(host.__name__, "helion" in sys.modules)
"""


def test_a_first_launch_finds_what_was_written_for_its_device_without_helion(tmp_path):
    path = tmp_path / "programs.zip"
    written = python("-m", "ci.programs", "--only", "deepseek_4x4_fp32_b128", "--workers", 1, "--out", path)
    assert written.returncode == 0, written.stderr
    changing = dict(program_cache.changing())
    env = {name: value for name, value in os.environ.items() if name not in changing}
    env["HELION_SINKHORN_CACHE_DIR"] = str(tmp_path / "kept")
    launched = python("-c", LAUNCHED, path, env=env)
    assert launched.stdout.splitlines() == ["sinkhorn_forward False", "sinkhorn_backward False"], (
        launched.stderr
    )
