"""Install the wheel of dist/ into an empty environment, and use it there without this checkout.

python ci/check_dist.py dist [--wheels FOLDER]; standard library only.

The demo and the examples come from the source distribution, which is unpacked beside the environment.  The
package that they import is the wheel.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tarfile
import tempfile
import venv
from pathlib import Path

HOLDS = """
import importlib.metadata, pathlib, sys
import helion_sinkhorn
from helion_sinkhorn.configs import store
package = pathlib.Path(helion_sinkhorn.__file__).parent
assert package.is_relative_to(sys.prefix), package
assert importlib.metadata.version("helion_sinkhorn") == helion_sinkhorn.__version__
assert (package / "py.typed").exists()
assert store.folders() == [package / "tuning_cache"]
assert store.read(package / "tuning_cache", "h200", "sinkhorn_forward")
assert list((package / "programs").glob("*.xz"))
files = importlib.metadata.files("helion_sinkhorn")
own = {path.parts[0] for path in files if not path.parts[0].endswith(".dist-info")}
assert own == {"helion_sinkhorn"}, own
print("helion_sinkhorn", helion_sinkhorn.__version__, "in", package)
"""
WORKLOAD = "deepseek_4x4_fp32_b128"


def uses(source: Path) -> list[list[str]]:
    """The commands for the new environment's Python, in a folder that holds only the benchmarks."""
    command = ["-m", "helion_sinkhorn"]
    # of this workload ranking stores a config for a b200, and for an h200 the default stays
    tune = ["tune", "--device", "b200", "--offline", "--kernel", "sinkhorn_forward", "--only", WORKLOAD]
    return [
        ["-c", HOLDS],
        ["-m", "benchmarks.demo", "--tokens", "256", "--no-compile"],
        [str(source / "examples" / "matching.py"), "--steps", "20"],
        [*command, "show", "--device", "h200", "--only", WORKLOAD],
        [*command, "tune", "--help"],
        [*command, *tune, "--out", "tuned", "--workers", "2"],
    ]


def check(dist: Path, wheels: str | None) -> None:
    """Raise if the installation or a command in it fails."""
    (wheel,), (archive,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "HELION_SINKHORN_"))}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with tarfile.open(archive) as packed:
            packed.extractall(place, filter="data")
        source = place / archive.name.removesuffix(".tar.gz")
        venv.EnvBuilder(with_pip=True).create(place / "venv")
        python = place / "venv" / "bin" / "python"
        offline = ["--no-index", "--find-links", str(Path(wheels).resolve())] if wheels else []
        install = ["-m", "pip", "install", "--quiet", *offline, "-c", str(source / "constraints.txt")]
        empty = place / "empty"
        shutil.copytree(source / "benchmarks", empty / "benchmarks")
        for words in [[*install, f"{wheel.resolve()}[cpu-codegen,bench]"], *uses(source)]:
            print(
                "$ python", " ".join(words).replace(folder, ".") if words[0] != "-c" else "-c ...", flush=True
            )
            subprocess.run([python, *words], cwd=empty, env=kept, check=True)
        if not (empty / "tuned" / "b200" / "sinkhorn_forward.json").exists():
            raise FileNotFoundError("tune wrote no tuned/b200/sinkhorn_forward.json")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dist", type=Path, help="a folder with one wheel and one source distribution")
    parser.add_argument("--wheels", metavar="FOLDER", help="install from these wheels, without an index")
    given = parser.parse_args()
    check(given.dist, given.wheels)
