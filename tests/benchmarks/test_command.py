"""Command lines: every help says how to start and how long it takes, and what is missing is a sentence."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from forked import printed

ROOT = Path(__file__).resolve().parents[2]
STARTED = [
    path
    for path in sorted((ROOT / "benchmarks").rglob("*.py"))
    if '__name__ == "__main__"' in path.read_text()
]
EXTRAS = "jax", "matplotlib", "mmasim", "pandas", "transformers"
WITHOUT_EXTRAS = f"""
import json, runpy, sys
sys.modules.update(dict.fromkeys({EXTRAS}))
def run(name, *words):
    sys.argv = [name, *words]
    try:
        if name.endswith(".py"):
            runpy.run_path(name, run_name="__main__")
        else:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        print(end)
for name, *words in json.loads(sys.argv[1]):
    print("-----")
    run(name, "--help")
    run(name, *words)
"""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")


def called(monkeypatch, capsys, path: Path, *words: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command that ends by itself."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        pytest.skip(str(missing))
    monkeypatch.setattr(sys, "argv", [path.name, *words])
    with pytest.raises(SystemExit) as ended:
        module.main()
    return ended.value.code, *capsys.readouterr()


@pytest.mark.parametrize("path", STARTED, ids=module_of)
def test_help_says_how_to_start_it_and_how_long_it_takes(path, monkeypatch, capsys):
    status, said, _ = called(monkeypatch, capsys, path, "--help")
    assert status == 0
    assert re.match(rf"usage: python -m {module_of(path)}\s", said)
    assert f"\n    python -m {module_of(path)}" in said
    assert re.search(r"\d+ s\b|minute", said)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing without a GPU")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("demo", ["--device", "cuda"]),
        ("demo_model/__main__", ["--device", "cuda"]),
        ("study", ["large", "--device", "cuda"]),
        *(("bench", [table]) for table in ("sinkhorn", "residual_path", "dot_compress", "linear_attention")),
    ],
)
def test_without_a_gpu_a_benchmark_says_so(name, words, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    status, _, said = called(monkeypatch, capsys, ROOT / "benchmarks" / f"{name}.py", *words)
    assert status == 2
    assert "this runs on a GPU, and torch sees none" in said


NEEDED = {
    "benchmarks.demo --device cpu": "matplotlib",
    "benchmarks.demo_model --device cpu": "matplotlib",
    "benchmarks.study dot_compress": "mmasim",
    "benchmarks.study backward": "matplotlib",
    "docs.numbers --check": r"\w+",
    "examples/finetune_lora.py": "transformers",
    "examples/jax_dlpack.py": "jax",
    "examples/patch_transformers.py": "transformers",
}


def test_without_extras_help_works_and_the_rest_says_what_to_install():
    asked = json.dumps([command.split() for command in NEEDED])
    _, *every = printed("-c", WITHOUT_EXTRAS, asked, cwd=ROOT).split("-----\n")
    for (command, needed), said in zip(NEEDED.items(), every, strict=True):
        assert said.startswith("usage: python "), command
        assert re.search(rf"\n0\nneeds {needed}: pip install \w+.*\n\Z", said), (command, said[-300:])
