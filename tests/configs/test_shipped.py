"""Every file of tuning_cache/: well formed, tuned for this source, compiles for its device, and is right."""

from __future__ import annotations

import pytest
import torch

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES, current
from helion_sinkhorn.tuning import check as cache
from helion_sinkhorn.tuning import finals, readme

SHIPPED = store.folders()[-1]
PROGRAMS = 4
"""Compiled for each device here; `python -m helion_sinkhorn check` compiles all of them."""
PARTS = 16
"""Parts of the replay on a GPU: each program is compiled first, and parts run side by side."""


def test_files_are_well_formed_and_tuned_for_this_source():
    pytest.importorskip("jsonschema")
    assert list(cache.complaints(SHIPPED)) == []


def test_an_entry_is_of_the_triton_of_its_run(tmp_path):
    pytest.importorskip("jsonschema")
    path = tmp_path / "b200" / "dot_compress_apply.json"
    path.parent.mkdir()
    text = (SHIPPED / "b200" / "dot_compress_apply.json").read_text()
    path.write_text(text)
    assert list(cache.complaints(tmp_path)) == []
    path.write_text(text.replace('"triton": "3.6"', '"triton": "3.7"', 1))
    assert any("is of a run under Triton 3.6.0" in line for line in cache.complaints(tmp_path))


def test_the_readme_says_what_the_data_say():
    assert (SHIPPED / "README.md").read_text() == readme.readme(SHIPPED)


BY_NIGHT = pytest.mark.nightly("half a minute of compilers; entries that were measured run always")


@pytest.mark.parametrize(
    "key", [key if key == "h200" else pytest.param(key, marks=BY_NIGHT) for key in DEVICES]
)
def test_a_sample_compiles_for_its_device(key, compile_for, monkeypatch):
    monkeypatch.setattr(cache, "compile_for", lambda device, jobs, workers: compile_for(device, jobs))
    jobs = cache.jobs(SHIPPED, key)
    every = max(1, -(-len(jobs) // PROGRAMS))
    assert list(cache.miscompiled(SHIPPED, 1, every, (key,))) == []


@pytest.mark.gpu
@pytest.mark.parametrize("part", range(PARTS))
def test_measured_configs_run_here_and_are_right(part):
    device = current(torch.cuda.current_device())
    jobs = cache.jobs(SHIPPED, device.key, "measured")
    errors = {job: finals.error(job.call, job.choice, "cuda") for job in jobs[part::PARTS]}
    assert not {job: error for job, error in errors.items() if error > 1}
    if device.key == "h200":
        assert len(jobs) >= PARTS
