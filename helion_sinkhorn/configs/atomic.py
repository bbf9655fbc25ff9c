"""Replacing files in one step, so that others may read them meanwhile."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock


def target(path: Path) -> Path:
    """The file that a path leads to, so that a link stays a link and its two names share a lock."""
    return Path(os.path.realpath(path))


def replace(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Replace a file in one step: write the content beside it, flush it and rename it."""
    path = target(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """In this block no other process writes the file by this function."""
    path = target(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        # remove the files of writers that were killed
        for left in path.parent.glob(f".{path.stem}.*.tmp"):
            left.unlink()
        yield
