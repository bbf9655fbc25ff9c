"""The patches of docs/upstream apply to the releases that they name."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PATCHES = Path(__file__).resolve().parents[1] / "docs" / "upstream"
RELEASES = {
    "helion_import": ("helion", "1.5.1"),
    "transformers_mhc": ("transformers", "5.24.0"),
    "vllm_mhc": ("vllm", "0.33.0"),
}


def test_every_patch_names_a_release():
    assert {path.stem for path in PATCHES.glob("*.patch")} == RELEASES.keys()


@pytest.mark.parametrize("name", RELEASES)
def test_a_patch_applies_to_its_release(name, tmp_path):
    package, version = RELEASES[name]
    try:
        installed = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"needs {package} {version}")
    if installed.version != version:
        pytest.skip(f"needs {package} {version}, installed is {installed.version}")
    patch = PATCHES / f"{name}.patch"
    for file in re.findall(r"^--- a/(.*)$", patch.read_text(), re.M):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(installed.locate_file(file), tmp_path / file)
    # outside of any repository, or git ignores paths that it does not know
    done = subprocess.run(["git", "apply", "--verbose", patch], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for file in tmp_path.rglob("*.py"):
        compile(file.read_text(), file, "exec")
        assert file.read_text() != Path(installed.locate_file(file.relative_to(tmp_path))).read_text()
