"""A typo ends a command before torch is imported, which takes seconds, on a busy machine half a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from helion_sinkhorn import arguments
from helion_sinkhorn.lab.operators import KERNELS, OPERATORS
from helion_sinkhorn.lab.workloads import WORKLOADS
from helion_sinkhorn.nearest import nearest, refused, suggestion

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = [
    *(f"-m helion_sinkhorn {name} --nonsense" for name in ("show", "check", "readme", "env")),
    "-m helion_sinkhorn tune --device h20",
    "-m helion_sinkhorn tune --device h200 --kernel sinkhorn_foward",
    "-m helion_sinkhorn warm --op hc_sight",
    "-m helion_sinkhorn check --workers 0",
    "-m helion_sinkhorn check --out /nonexistent",
    "-m helion_sinkhorn shwo",
    *(f"-m benchmarks.{name} --nonsense" for name in (
        "demo", "demo_model", "bench sinkhorn", "bench residual_path", "bench dot_compress",
        "bench linear_attention",
        *(f"study {path.stem}" for path in sorted((ROOT / "benchmarks" / "studies").glob("*.py"))),
    )),
    *(f"-m ci.{name} --nonsense" for name in (
        "accuracy", "attack", "compare x", "emulate", "fault_tables", "machine_terms",
        "machine_versions", "mutants", "programs",
        "same_programs --base x", "sanitize",
    )),
    *(f"{path.relative_to(ROOT)} --nonsense" for path in sorted((ROOT / "examples").glob("*.py"))),
    "-m benchmarks.demo --tokens 0",
    "-m docs.numbers --nonsense",
    "examples/finetune_lora.py --rank 0",
    "examples/jax_dlpack.py --batch 0",
    "examples/matching.py --n -1",
    "examples/patch_transformers.py --hidden 0",
    "examples/serve_cuda_graph.py --layers -1",
    "examples/train_mhc.py --blocks 0",
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS)
def test_a_typo_is_said_before_torch_is_imported(words, without_torch):
    done = without_torch(*words.split(), cwd=ROOT, path=[ROOT])
    assert "torch was imported" not in done.stderr
    assert done.returncode == 2, done.stderr
    assert words.split()[-1] in done.stderr


def test_an_import_of_the_package_takes_torch(without_torch):
    """Or the tests above could not fail."""
    for code in (
        "import helion_sinkhorn",
        "import runpy; runpy.run_module('helion_sinkhorn.lab.tuning.child')",
    ):
        assert "torch was imported" in without_torch("-c", code, cwd=ROOT, path=[ROOT]).stderr


def test_names_known_before_torch_are_those_of_the_tables():
    assert tuple(OPERATORS) == arguments.OPERATORS
    assert tuple(KERNELS) == arguments.KERNELS
    assert tuple(sorted({tag for w in WORKLOADS.values() for tag in w.tags})) == arguments.TAGS


def test_the_nearest_names():
    assert nearest("H20", ["h100", "h200"]) == ["h200"]
    assert suggestion("pytorsh", ["auto", "helion", "pytorch"]) == "; the nearest is pytorch"
    assert suggestion(None, ["auto", "helion"]) == ""
    assert suggestion("hc_pr", ["hc_pre", "hc_post"]) == "; the nearest are\n  hc_pre\n  hc_post"
    assert refused("x", "ab") == "'x' is not known; use one of a, b"
    assert refused("x", KERNELS).splitlines()[1:] == [f"  {name}" for name in KERNELS]
    assert refused("hc_pre_foward", KERNELS).splitlines()[:2] == [
        f"'hc_pre_foward' is not known; use one of {len(KERNELS)} names; the nearest are", "  hc_pre_forward",
    ]  # fmt: skip
