"""Generated code that the package brings: when it is used, and that Helion is not imported then."""

from __future__ import annotations

import importlib.metadata
import json
import lzma

import pytest
import torch
from forked import printed

from helion_sinkhorn.configs import settings, store
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.runtime import program_cache, shipped

CPU = torch.device("cpu")
DECIDED = "a config", "a signature"
KERNEL = KERNELS["sinkhorn_forward"]
TEXT = "def host():\n    return 41\n"


def program(decided=DECIDED, kernel=KERNEL):
    return shipped.program(kernel, "host", decided, CPU)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file with one program, which returns 41."""
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "programs")
    monkeypatch.setattr(settings, "CACHE_DIR", str(tmp_path / "kept"))
    for name, _ in program_cache.changing():
        monkeypatch.delenv(name)
    shipped.write(KERNEL, {shipped.stack(): {shipped.key(DECIDED, CPU): TEXT}})
    shipped.programs.cache_clear()
    yield shipped.path_of(KERNEL)
    shipped.programs.cache_clear()


def test_a_program_is_found_by_what_decides_its_code(file, monkeypatch):
    assert program()() == 41
    assert program(("another config", DECIDED[1])) is None
    assert program(kernel=KERNELS["sinkhorn_backward"]) is None
    for owner, name, other in (
        (program_cache, "target", lambda device: ("another device",)),
        (shipped, "source", lambda kernel: "another digest"),
        (settings, "CACHE_DIR", "off"),
        # a package without the file generates
        (shipped, "FOLDER", file.parent / "elsewhere"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, other)
            shipped.programs.cache_clear()
            assert program() is None, name
    monkeypatch.setenv("HELION_STATIC_SHAPES", "1")
    assert program() is None


@pytest.mark.parametrize(
    ("package", "version", "is_found"),
    [
        ("torch", "9.9", True),
        ("triton", "{minor}.99", True),
        ("triton", "9.9.0", False),
        ("helion", "9.9", False),
    ],
    ids=["torch", "a patch of Triton", "Triton", "Helion"],
)
def test_versions_that_decide(file, monkeypatch, package, version, is_found):
    version, installed = version.format(minor=store.triton_minor()), importlib.metadata.version
    monkeypatch.setattr(store, "installed_triton", store.installed_triton.__wrapped__)
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: version if name == package else installed(name)
    )
    assert (program() is not None) is is_found


@pytest.mark.parametrize(
    "changed", [KERNEL.body, *[f"helion_sinkhorn.runtime.generated:{m}" for m in shipped.MAKERS]]
)
def test_the_source_is_that_of_the_kernel_and_of_what_makes_its_code(changed, monkeypatch):
    before, own = shipped.source(KERNEL), shipped.fingerprint_of
    monkeypatch.setattr(shipped, "fingerprint_of", lambda f: "edited" if f == changed else own(f))
    assert shipped.source(KERNEL) != before


def test_of_a_damaged_file_nothing_is_used_and_one_warning_says_so(file, caplog):
    good = file.read_bytes()
    held = json.loads(lzma.decompress(good))
    contents = [{k: v for k, v in held.items() if k != name} for name in held] + [{**held, "texts": []}]
    for damaged in (
        good[:-30], b"", good[:200] + bytes([good[200] ^ 1]) + good[201:],
        *(lzma.compress(json.dumps(content).encode()) for content in contents),
    ):  # fmt: skip
        file.write_bytes(damaged)
        shipped.programs.cache_clear()
        caplog.clear()
        assert program() is program() is None
        assert [r.levelname for r in caplog.records] == ["WARNING"]
        assert "Install the package anew" in caplog.text


def test_texts_are_held_once_and_the_same_programs_make_the_same_bytes(file):
    one, two = {"a": TEXT, "b": "2\n"}, {"a": TEXT}
    shipped.write(KERNEL, {"one": one, "two": two})
    before = file.read_bytes()
    assert shipped.read(KERNEL) == {"one": one, "two": two}
    assert sorted(json.loads(lzma.decompress(before))["texts"]) == ["2\n", TEXT]
    shipped.write(KERNEL, {"two": two, "one": dict(reversed(one.items()))})
    assert file.read_bytes() == before


MEASURED = [
    name for name in KERNELS
    if any(e.evidence == "measured" for device in ("h100", "h200")
           for e in store.read(store.folders()[-1], device, name))
]  # fmt: skip
"""Kernels with measured entries for a device of Hopper's."""


@pytest.mark.parametrize("name", MEASURED)
def test_what_comes_with_the_package_is_of_its_kernels(name):
    """`make programs` writes it anew: a process with an outdated file imports Helion for seconds."""
    held = json.loads(lzma.decompress(shipped.path_of(KERNELS[name]).read_bytes()))
    assert held["source"] == shipped.source(KERNELS[name])
    assert shipped.stack() in held["stacks"]


LAUNCHED = """
import sys
from pathlib import Path
import torch
from ci.programs import begin, key_of
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.runtime import shipped
from helion_sinkhorn.lab.tuning import warm
from helion_sinkhorn.lab.workloads import WORKLOADS

begin(Path(sys.argv[2]) if len(sys.argv) > 2 else shipped.FOLDER)
for name in sys.argv[1].split(","):
    for kernel, arguments in warm.launches(WORKLOADS[name], DEVICES["h100"]):
        print(kernel.name, key_of(kernel, arguments) in shipped.programs(kernel.kernel))
print("helion" in sys.modules)
"""
STORED = (
    "deepseek_4x4_fp32_b128", "log_16x16_fp32_b8192", "mixes_bf16_c4096_b128", "hc_pre_bf16_c4096_b128",
    "hc_post_bf16_c4096_b128", "hc_site_bf16_c4096_b128",
)  # fmt: skip


def test_programs_of_stored_calls_come_with_the_package():
    *programs, helion = printed("-c", LAUNCHED, ",".join(STORED)).splitlines()
    assert len(programs) > len(STORED)
    assert [p for p in programs if not p.endswith(" True")] == []
    assert helion == "False"


@pytest.mark.nightly("half a minute: Helion for one kernel, in a process of its own")
def test_programs_are_written_for_a_device_that_is_not_there(tmp_path):
    only = "hc_pre_bf16_c4096_b128"
    for _ in range(2):
        printed("-m", "ci.programs", "--only", only, "--workers", 1, "--out", tmp_path)
    files = {file.stem for file in tmp_path.iterdir()}
    assert files == {"hc_pre_forward", "hc_pre_backward"}
    launched = printed("-c", LAUNCHED, only, tmp_path).splitlines()
    assert launched == ["hc_pre_forward True", "hc_pre_backward True", "False"]
