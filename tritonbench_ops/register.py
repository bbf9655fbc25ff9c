"""Let tritonbench find our operators outside of its own tree, without writing to it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path

from tritonbench_ops.flags import NAMES

FOLDER = Path(__file__).resolve().parent


def register() -> None:
    """Add this folder to tritonbench.operators and NAMES to the list --op looks in; once is enough.

    tritonbench has no hook for this.  It takes an operator's name from its module's, which has to begin with
    "tritonbench.operators.", so the package's path is extended rather than our own module handed over.
    """
    import tritonbench.operators as package
    from tritonbench.operators import op

    if str(FOLDER) not in package.__path__:
        package.__path__.append(str(FOLDER))
    listed = op._list_opbench_paths
    if getattr(listed, "lists_ours", False):
        return

    @functools.wraps(listed)
    def paths() -> list[str]:
        found = listed()
        # a link in tritonbench's tree lists it already
        listed_already = {Path(path).name for path in found}
        return sorted([*found, *(str(FOLDER / name) for name in NAMES if name not in listed_already)])

    paths.lists_ours = True
    op._list_opbench_paths = paths


def class_of(name: str) -> type:
    """The class of an operator, whatever name its package was imported under: tritonbench's, or ours."""
    register()
    return importlib.import_module(f"tritonbench.operators.{name}.operator").Operator


def finds_operator(name: str) -> Callable[[str], type]:
    """The `__getattr__` of an operator's package, whose only name is `Operator`."""

    def find(wanted: str) -> type:
        if wanted != "Operator":
            raise AttributeError(wanted)
        return class_of(name)

    return find
