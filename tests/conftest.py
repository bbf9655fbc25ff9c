"""Hypothesis profiles, the `gpu` marker, and NaN in every tensor the package allocates."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import hypothesis
import pytest
import torch
from processes import Compilers, Ranks
from shared import FOLDER, NIGHTLY, once

# the package reads it once; tests must not use code of an earlier run or the user's folder
os.environ["HELION_SINKHORN_CACHE_DIR"] = "off"
# nor configs or a device of the user's own
for name in ("HELION_SINKHORN_TUNING_DIR", "HELION_SINKHORN_DEVICE"):
    os.environ.pop(name, None)

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=25, print_blob=True)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Triton decides at import whether it interprets: test_triton_interpreter.py runs these in their own process
collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["triton_interpreter"]


# Imported modules and collected tests stay: to look for garbage among them takes a second a time
gc.set_threshold(100_000, 20, 20)


def pytest_collection_finish():
    gc.freeze()


LONGEST = (
    "test_triton_interpreter", "test_emulation", "test_equal", "test_accuracy", "test_kept_candidates",
    "test_machine_terms", "test_own_gradient",
)  # fmt: skip
"""All but the first fork processes that have loaded what Helion imports: one of the two begins with these."""


def pytest_configure(config):
    """A folder for this run, which its other processes inherit."""
    if FOLDER not in os.environ:
        os.environ[FOLDER] = folder = tempfile.mkdtemp(prefix="helion_sinkhorn_tests_")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_collection_modifyitems(items):
    # two processes take a half each, and share what is left: each begins with some of the longest, and starts
    # one compiler, which takes seconds, as two processes of a mesh do and one that forks
    amd, nvidia, longest, others = [], [], [], []
    for item in items:
        if "on_two_processes" in item.fixturenames:
            nvidia.append(item)
        elif "compile_for" in item.fixturenames:
            (amd if "mi350" in item.name else nvidia).append(item)
        else:
            (longest if item.path.name.startswith(LONGEST) else others).append(item)
    half = len(others) // 2
    items[:] = nvidia + others[:half] + longest + amd + others[half:]
    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA or ROCm GPU"))
        mark = item.get_closest_marker("nightly")
        if mark is not None and not NIGHTLY:
            item.add_marker(pytest.mark.skip(reason=f"nightly: {mark.args[0]}"))


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    """What the package allocates without values is NaN: an entry never written fails its test."""

    def poisoned(allocate):
        @functools.wraps(allocate)
        def allocate_nan(*args, **kwargs):
            tensor = allocate(*args, **kwargs)
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if caller.startswith("helion_sinkhorn.") and tensor.is_floating_point():
                tensor.fill_(float("nan"))
            return tensor

        return allocate_nan

    for owner, names in (
        (torch, ("empty", "empty_like", "empty_strided")), (torch.Tensor, ("new_empty", "new_empty_strided")),
    ):  # fmt: skip
        for name in names:
            monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))


@pytest.fixture(scope="session")
def compile_for():
    """machine.compiler.compile_for, by processes that stay for all tests: one costs 5 s to start."""
    compilers = Compilers()
    yield compilers
    compilers.stop()


@pytest.fixture(scope="session")
def on_two_processes():
    """What a function of a mesh finds in each of two processes, asked once in a run."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    ranks = Ranks()
    yield lambda work: once(f"{work.__module__}.{work.__qualname__}", lambda: ranks(work))
    ranks.stop()


@pytest.fixture
def mesh():
    """A mesh of this process alone."""
    if not torch.distributed.is_available() or torch.distributed.is_initialized():
        pytest.skip("no process group of its own")
    from torch.distributed.device_mesh import init_device_mesh

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.fixture
def fresh_caches():
    """Nothing looked up, refused or launched before a test, and nothing of it afterwards."""
    from helion_sinkhorn.runtime.launch import forget

    forget()
    yield
    forget()


@pytest.fixture(scope="session")
def without_torch(tmp_path_factory):
    """A Python command without torch: (words, its folder, folders to import from) -> how it ended."""
    stub = tmp_path_factory.mktemp("without_torch")
    (stub / "torch.py").write_text("raise SystemExit('torch was imported')\n")

    def command(*words: str, cwd: Path, path: Sequence[Path]) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (stub, *path)))}
        return subprocess.run(
            [sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True
        )

    return command


@pytest.fixture
def refused(capsys):
    """What a command of the package says of words that it does not take: words -> the error, alone."""

    def command(*words: str) -> str:
        from helion_sinkhorn.__main__ import main

        with pytest.raises(SystemExit) as end:
            main([*words])
        said = capsys.readouterr()
        assert (end.value.code, said.out) == (2, "")
        return said.err

    return command
