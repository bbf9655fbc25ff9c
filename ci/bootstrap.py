"""Make the virtual environment of `make demo` and `make test`; standard library only.

python ci/bootstrap.py FOLDER [--wheels FOLDER]

If the interpreter that runs this has a new enough CUDA or ROCm build of torch, the environment uses its
packages; otherwise it gets the tested versions of constraints.txt.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 11)
ORACLES = ("POT", "transformers==5.23.0")
# The version pip knows, which may lack the "+cu130" of torch.__version__
PROBE = """
import importlib.metadata, torch
print(importlib.metadata.version("torch"), torch.version.cuda or torch.version.hip or "")
"""


@dataclass(frozen=True)
class Torch:
    """An installed torch and the CUDA or ROCm version it was built for, "" for a CPU build."""

    version: str
    gpu: str

    @property
    def suitable(self) -> bool:
        """Whether the environment should use it."""
        return bool(self.gpu) and release(self.version) >= OLDEST_TORCH


def release(version: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


def helion_for(torch_version: str) -> str:
    """The Helion tested with a torch: 1.5.1 does not import on torch 2.11."""
    if release(torch_version) < OLDEST_TORCH:
        raise ValueError(
            f"torch {torch_version} is too old: helion_sinkhorn needs 2.11 or newer; upgrade torch"
        )
    return "1.5.1" if release(torch_version) >= (2, 12) else "1.5.0"


def find_torch(python: str | Path) -> Torch | None:
    """The torch that an interpreter imports; None if none works."""
    probe = subprocess.run([str(python), "-c", PROBE], capture_output=True, text=True, check=False)
    if probe.returncode:
        return None
    version, _, gpu = probe.stdout.splitlines()[-1].partition(" ")
    return Torch(version, gpu)


def borrow(folder: Path, site_folders: list[str]) -> None:
    """Let the environment in `folder` import from these folders too, after its own.

    --system-site-packages would give the packages of the base interpreter, even if this interpreter belongs
    to an environment.
    """
    (packages,) = folder.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({path!r})\n" for path in site_folders]
    (packages / "borrowed.pth").write_text("".join(lines))


def make(folder: Path, wheels: str | None) -> str:
    """Create or update the environment in `folder`, and return a sentence about its content."""
    host = find_torch(sys.executable)
    host = host if host and host.suitable else None
    python = folder / "bin" / "python"
    # the host's pip is enough; ensurepip could put an older setuptools before the host's
    own_pip = not (host and importlib.util.find_spec("pip"))
    if own_pip and not importlib.util.find_spec("ensurepip"):
        sys.exit(f"{sys.executable} lacks ensurepip, which brings pip: install it (Debian: python3-venv)")
    venv.EnvBuilder(with_pip=own_pip).create(folder)
    borrow(
        folder, [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")] if host else []
    )

    constraints = ROOT / "constraints.txt"
    if host:
        # the host's packages were built for one another: keep its torch, replace nothing
        constraints = folder / "constraints.txt"
        constraints.write_text(f"torch=={host.version}\nhelion=={helion_for(host.version)}\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-build-isolation"]
    pip += ["--no-index", "--find-links", wheels] if wheels else []
    # pip would take a minute and a half to compile all modules, of which a tenth is ever imported
    pip += ["--disable-pip-version-check", "--no-compile"]

    def install(*words: str, within: tuple[str, ...] = ("-c", str(constraints))) -> bool:
        return subprocess.run([*pip, *within, *words], cwd=ROOT, check=False).returncode == 0

    if not install("torch", "setuptools>=77"):
        sys.exit("torch could not be installed: see pip's message above")
    torch = host or find_torch(python)
    if torch is None:
        sys.exit(f"torch was installed in {folder} and does not import: run {python} -c 'import torch'")
    older = folder / "helion-1.5.0"
    wanted = helion_for(torch.version) != "1.5.0" and not older.exists()
    # in a folder of its own, from which tests import it
    if wanted and not install("helion==1.5.0", within=("--no-deps", "--target", str(older))):
        print("Helion 1.5.0 was not found: the test of the code that it generates will be skipped")
    extras = "test,bench" if torch.gpu else "test,bench,cpu-codegen"
    if not install("-e", f".[{extras}]"):
        sys.exit("the requirements could not be installed: see pip's message above")
    if not wheels and not install(*ORACLES):
        sys.exit(f"{' or '.join(ORACLES)} could not be installed: see pip's message above")
    for oracle in ORACLES if wheels else ():
        if not install(oracle):
            print(f"{oracle} is not in {wheels}: the tests that compare with it will be skipped")
    origin = f"borrowed from {sys.executable}" if host else "of its own"
    return f"{folder}: torch {torch.version} {origin}, helion {helion_for(torch.version)}"


if __name__ == "__main__":
    if sys.version_info < OLDEST_PYTHON:
        sys.exit(
            f"{sys.executable} is Python {sys.version.split()[0]}; 3.10 or newer is needed: make PYTHON=..."
        )
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the environment to make")
    parser.add_argument("--wheels", metavar="FOLDER", help="install from these wheels, without an index")
    options = parser.parse_args()
    print(make(options.folder.resolve(), options.wheels))
