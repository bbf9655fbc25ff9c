"""Every file of tuning_cache/: well formed, tuned for this source, compiles for its device, and is right."""

from __future__ import annotations

import re
import shutil
import types

import pytest
import torch

from helion_sinkhorn.__main__ import main
from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import current
from helion_sinkhorn.lab.tuning import check as cache
from helion_sinkhorn.lab.tuning import finals, markdown, readme

SHIPPED = store.folders()[-1]
PARTS = 64
"""Parts of the replay on a GPU: each program is compiled first, and parts run side by side.

A sixteenth compiles for more than four minutes."""


def test_files_are_well_formed_and_tuned_for_this_source():
    assert list(cache.complaints(SHIPPED)) == []


def test_an_entry_is_of_the_triton_of_its_run(tmp_path):
    path = tmp_path / "h200" / "dot_compress_apply.json"
    path.parent.mkdir()
    text = (SHIPPED / "h200" / path.name).read_text()
    path.write_text(text)
    assert list(cache.complaints(tmp_path)) == []
    path.write_text(text.replace('"triton": "3.6"', '"triton": "3.7"', 1))
    assert any("is of a run under Triton 3.6.0" in line for line in cache.complaints(tmp_path))


def test_the_readme_says_what_the_data_say():
    assert (SHIPPED / "README.md").read_text() == readme.readme(SHIPPED)


def test_a_bar_does_not_end_a_cell_of_a_table():
    assert markdown.line(["|x|", "y"]) == r"| \|x\| | y |"


# ----------------------------------------------------------------------------- the commands about a folder


@pytest.fixture
def folder(tmp_path, capsys):
    """Two files of the shipped folder, and its README as their data have it."""
    for name in ("h200/hc_pre_forward.json", "h200/hc_pre_backward.json", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(SHIPPED / name, tmp_path / name)
    assert main(["readme", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    return tmp_path


def test_readme_of_a_folder_without_text_or_with_a_damaged_file(folder, refused):
    (folder / "h200" / "hc_pre_forward.json").write_text("{")
    words = "readme", "--out", str(folder)
    assert "is damaged; `check --no-compile` says which" in refused(*words)
    (folder / "README.md").unlink()
    assert f"there is no {folder / 'README.md'}; write one" in refused(*words)


def test_check_tells_each_file_when_its_programs_are_compiled(folder, monkeypatch, capsys):
    def compile_for(device, jobs, workers, report):
        for job in reversed(jobs):
            report(types.SimpleNamespace(job=job, problems=(), compiled=True))
        return []

    monkeypatch.setattr(cache, "compile_for", compile_for)
    assert main(["check", "--out", str(folder)]) == 0
    begun, *compiled, last = capsys.readouterr().out.splitlines()
    first, second = sorted(compiled)
    programs = len(cache.jobs(folder, "h200"))
    assert begun == f"h200: {programs} programs to compile"
    assert re.fullmatch(r"  h200/hc_pre_backward.json: \d+ programs compiled, 0 s", first)
    assert re.fullmatch(r"  h200/hc_pre_forward.json: \d+ programs compiled, 0 s", second)
    assert last.startswith(f"2 files, {programs} programs, 0 problems")


def test_check_names_a_damaged_file_and_ends_with_1(folder, capsys):
    (folder / "h200" / "hc_pre_forward.json").write_text("{")
    assert main(["check", "--no-compile", "--out", str(folder)]) == 1
    assert f"{folder / 'h200' / 'hc_pre_forward.json'}: Expecting" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("part", range(PARTS))
def test_measured_configs_run_here_and_are_right(part):
    device = current(torch.cuda.current_device())
    jobs = cache.jobs(SHIPPED, device.key, "measured")
    errors = {job: finals.error(job.call, job.choice, "cuda") for job in jobs[part::PARTS]}
    assert not {job: error for job, error in errors.items() if error > 1}
    if device.key == "h200":
        assert len(jobs) >= PARTS
