"""Every operator has its rooms, its row and its folders, and modules stay small."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {"api", "torch_op", "eager", "reference"}
LAB_ROOMS = {"workloads", "budget", "evidence"}
FAMILY_OF_MHC = {"hc_mixes", "hc_split_sinkhorn", "hc_pre", "hc_post", "hc_site"}
"""Operators whose code is in ops/mhc/, without the prefix; tests, pages and commands have the public name."""
OF_PARTS = {"hc_site"}
"""Operators made of others, which compute where there are no kernels: they need no `eager`."""
WITH_KERNELS = {"launch", "space"}
"""What a folder with kernels has, be it the operator's own or a part of it."""
TESTS = {"test_api"}
TABLES = {
    "test_gpu": "tests/contract/test_budgets.py",
    "test_tritonbench": "tests/tritonbench/test_operators.py",
}  # fmt: skip
"""What an operator has as a file of its own, or as a row there."""
TRITONBENCH = {"linear_attention": "recurrent_linear_attention", "balance": "sinkhorn_balance"}
"""Where tritonbench has the operator under another name than its folder's."""
MOST_LINES = 300


def modules(folder: Path) -> set[str]:
    return {p.stem for p in folder.glob("*.py")}


def folder_of(op: str) -> str:
    """The folder of an operator in ops/; in lab/ and without `mhc/` it has the same."""
    return f"mhc/{op.removeprefix('hc_').removesuffix('_sinkhorn')}" if op in FAMILY_OF_MHC else op


def dotted(folder: str) -> str:
    return folder.replace("/", ".")


def lacks(root: Path, op: str) -> list[str]:
    """What an operator is missing (docs/dev/adding_an_operator.md)."""
    code, lab = f"helion_sinkhorn/ops/{folder_of(op)}", f"helion_sinkhorn/lab/{folder_of(op).split('/')[-1]}"
    bench = TRITONBENCH.get(op, op)
    parts = [p.parent.relative_to(root).as_posix() for p in (root / code).rglob("launch.py")]
    rooms = {
        code: ROOMS - {"eager"} if op in OF_PARTS else ROOMS,
        lab: LAB_ROOMS,
        f"ci/operators/{op}": {"wrong"},
        f"tritonbench_ops/{bench}": {"cases"},
        f"tests/{op}": TESTS,
        "tests/triton_interpreter": {f"test_{op}"},
    }
    for part in parts or [code]:
        rooms[part] = rooms.get(part, set()) | WITH_KERNELS
    missing = [
        f"{folder}/{room}.py"
        for folder, wanted in rooms.items()
        for room in sorted(wanted - modules(root / folder))
    ]
    own = modules(root / "tests" / op)
    missing += [
        f"{table}: no row of {op}"
        for room, table in TABLES.items()
        if room not in own and not any(f'"{name}": ' in (root / table).read_text() for name in (op, bench))
    ]
    lines = [
        ("helion_sinkhorn/lab/workloads.py", f'"{Path(lab).name}"'),
        ("helion_sinkhorn/reference.py", f"{dotted(code)}.reference"),
        ("helion_sinkhorn/__init__.py", f"{dotted(code)}.api"),
        ("ci/operators/__init__.py", f"ci.operators.{op}"),
        ("tritonbench_ops/flags.py", f'"{bench}"'),
        ("pyproject.toml", f'"{dotted(code)}"'),
        ("pyproject.toml", f'"{dotted(lab)}"'),
        ("docs/api.md", f"::: helion_sinkhorn.{bench}\n"),
    ]
    return missing + [f"a line in {path}" for path, line in lines if line not in (root / path).read_text()]


def operators(root: Path) -> list[str]:
    folders = (p for p in (root / "helion_sinkhorn" / "ops").iterdir() if (p / "__init__.py").exists())
    return sorted({p.name for p in folders} - {"mhc"} | FAMILY_OF_MHC)


@pytest.mark.parametrize("op", operators(ROOT))
def test_an_operator_has_everything(op):
    assert lacks(ROOT, op) == []


@pytest.fixture
def copy(tmp_path):
    """The repository's code and pages, to change."""
    for name in ("helion_sinkhorn", "ci", "tritonbench_ops", "tests", "docs", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_a_new_operator_is_five_folders_and_seven_lines(copy):
    """dot compress under another name: what it takes until nothing is missing."""
    touched = set()
    for folder in ("helion_sinkhorn/ops", "helion_sinkhorn/lab", "ci/operators", "tritonbench_ops", "tests"):
        shutil.copytree(copy / folder / "dot_compress", copy / folder / "throw_away")
    path = copy / "tests" / "triton_interpreter"
    shutil.copy(path / "test_dot_compress.py", path / "test_throw_away.py")
    for lack in {*lacks(copy, "throw_away")}:
        path = copy / lack.removeprefix("a line in ")
        lines = path.read_text().splitlines(keepends=True)
        new = [line.replace("dot_compress", "throw_away") for line in lines if "dot_compress" in line]
        path.write_text("".join([*lines, *new]))
        touched.add(str(path.relative_to(copy)))
    assert lacks(copy, "throw_away") == []
    assert len(touched) == 7


def test_modules_of_the_package_are_short():
    long = {
        str(p.relative_to(ROOT)): n
        for p in (ROOT / "helion_sinkhorn").rglob("*.py")
        if (n := len(p.read_text().splitlines())) > MOST_LINES
    }
    assert long == {}


@pytest.mark.parametrize("folder", ["helion_sinkhorn", "ci", "tritonbench_ops", "benchmarks", "tests"])
def test_docstrings_begin_with_what_a_thing_is(folder):
    """ "Of ..." and "Those of ..." need the code beside them to be understood."""
    places = [
        f"{p.relative_to(ROOT)}:{node.lineno}"
        for p in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(p.read_text()))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and node.value.value.startswith(("Of ", "Those of ", "That of ", "As those of "))
    ]
    assert places == []


VIOLATIONS = [
    ("helion_sinkhorn/ops/dot_compress/eager.py", "from helion_sinkhorn.ops.sinkhorn import scaling"),
    ("helion_sinkhorn/runtime/views.py", "from helion_sinkhorn.lab import operators"),
    ("helion_sinkhorn/ops/sinkhorn/launch.py", "from helion_sinkhorn.lab.sinkhorn import workloads"),
    ("helion_sinkhorn/lab/mixes/budget.py", "from helion_sinkhorn.lab.tuning import tune"),
    ("helion_sinkhorn/ops/sinkhorn/kernels.py", "from helion_sinkhorn.ops.sinkhorn import reference"),
    ("helion_sinkhorn/configs/lookup.py", "import helion"),
    ("helion_sinkhorn/ops/mhc/post/api.py", "from helion_sinkhorn.mhc import functional"),
    ("helion_sinkhorn/mhc/modules.py", "from helion_sinkhorn import reference"),
    ("helion_sinkhorn/mhc/modules.py", "import transformers"),
    ("helion_sinkhorn/lab/tuning/plan.py", "from ci.gate import gate"),
    ("ci/gate/gate.py", "from ci import accuracy"),
    ("tritonbench_ops/dot_compress/cases.py", "import tritonbench"),
]


def test_import_contracts_break_where_a_violation_is_planted(copy):
    """All in one run: the report names the line of each."""
    pytest.importorskip("importlinter", reason="make lint installs it")
    for module, planted in VIOLATIONS:
        path = copy / module
        path.write_text(
            path.read_text().replace(
                "from __future__ import annotations\n",
                f"from __future__ import annotations\n\n{planted}\n",
                1,
            )
        )
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c(['--no-cache'])"],
        cwd=copy, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    named = " ".join(done.stdout.split())
    for module, planted in VIOLATIONS:
        source, target = module.removesuffix(".py").replace("/", "."), planted.split()[1]
        name = planted.partition(" import ")[2]
        reported = [f"{source} -> {t}" in named for t in (target, f"{target}.{name}")]
        assert any(reported), f"{source} imports {target}\n{done.stdout}"
