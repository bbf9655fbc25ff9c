"""Write a wheel of this package as a repository of Hugging Face's kernels hub.

python ci/hub.py WHEEL FOLDER [--load].  The package `kernels` looks for a folder for each backend; here all
have the same content, since Helion generates the code on the user's machine.  `kernels` imports a folder
under another name, but this package imports its modules as helion_sinkhorn, so the __init__.py of each folder
imports the package beside it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

BACKENDS = "cpu", "cuda", "rocm"
CARD = """---
library_name: kernels
license: mit
---
The residual path of mHC and Sinkhorn-Knopp in Helion kernels, with exact gradients:
`kernels.get_kernel(..., version=1).nn.HyperSublayer`.
"""
INIT = '''"""The package beside this file, under the name by which its modules import each other."""

import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
try:
    import helion_sinkhorn
    from helion_sinkhorn import *
    from helion_sinkhorn.integrations import layers
finally:
    sys.path.remove(HERE)

__version__ = "{version}"
if helion_sinkhorn.__version__ != __version__:
    raise ImportError(
        f"helion_sinkhorn {{helion_sinkhorn.__version__}} of {{helion_sinkhorn.__path__[0]}} is imported, "
        f"this is {{__version__}}, and PyTorch registers an operator once: load one of them in a new process"
    )
'''
TRIED = """
import sys, torch
from pathlib import Path
from kernels import get_local_kernel
loaded = get_local_kernel(Path(sys.argv[1]))
assert Path(loaded.helion_sinkhorn.__file__).is_relative_to(sys.argv[1]), loaded.helion_sinkhorn
layer = loaded.nn.HyperSublayer(torch.nn.Linear(64, 64), 64)
layer(loaded.hc_expand(torch.randn(2, 8, 64), 4)).square().mean().backward()
print(loaded.__name__, "loaded; fn has a gradient:", layer.connection.fn.grad is not None)
"""


def write(wheel: Path, folder: Path) -> None:
    """Replace `folder` by the files of the repository."""
    shutil.rmtree(folder, ignore_errors=True)
    version = wheel.name.split("-")[1]
    for backend in BACKENDS:
        place = folder / "build" / f"torch-{backend}"
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(place, [n for n in packed.namelist() if n.startswith("helion_sinkhorn/")])
        (place / "__init__.py").write_text(INIT.format(version=version))
        metadata = {
            "name": "helion-sinkhorn", "id": f"_helion_sinkhorn_{backend}_{version.replace('.', '_')}",
            "version": 1, "license": "MIT", "python-depends": ["helion"], "backend": {"type": backend},
        }  # fmt: skip
        (place / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    (folder / "README.md").write_text(CARD)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--load", action="store_true", help="load it with `kernels`, and train a layer one step"
    )
    given = parser.parse_args()
    write(given.wheel, given.folder)
    if given.load:
        subprocess.run([sys.executable, "-c", TRIED, given.folder.resolve()], cwd=given.folder, check=True)
