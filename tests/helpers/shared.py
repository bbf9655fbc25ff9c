"""once(...): a result that several tests need, computed by one process of a run and shared by all."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
FOLDER = "HELION_SINKHORN_TESTS_SHARED"
"""The environment variable by which conftest names a folder of this run."""
T = TypeVar("T")


def once(name: str, compute: Callable[[], T]) -> T:
    """compute() by the first process that asks for this name, and its pickled result for the others."""
    path = Path(os.environ[FOLDER]) / f"{name}.pickle"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            result = compute()
            path.write_bytes(pickle.dumps(result))
            return result
    return pickle.loads(path.read_bytes())
