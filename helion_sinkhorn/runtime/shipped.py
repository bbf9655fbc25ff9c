"""Generated code that comes with the package, so that a first call of a tuned shape imports no Helion.

`make dist PROGRAMS=1` writes the archive for the configs of tuning_cache/, and a wheel that is built after it
holds it.  A checkout has none.  An archive of another source than this package's is not used.
"""

from __future__ import annotations

import functools
import logging
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from helion_sinkhorn.configs import settings, store
from helion_sinkhorn.runtime import program_cache
from helion_sinkhorn.runtime.standalone import load

log = logging.getLogger("helion_sinkhorn")
ARCHIVE = Path(__file__).resolve().parents[1] / "programs.zip"


def member(kernel: str, decided: Iterable[object], device: torch.device) -> str:
    """The name of a program in the archive: that of a kept one, for any torch, Python and patch of Triton.

    Helion's version counts: 1.5.1 masks sums that 1.5.0 does not.
    """
    helion = program_cache.versions()[3]
    return program_cache.file_name(kernel, decided, device, made_with=(store.triton_minor(), helion))


_damaged: set[Path] = set()


def say_unused(error: Exception) -> None:
    """Once a process: the archive, or a program in it, cannot be read."""
    if ARCHIVE not in _damaged:
        _damaged.add(ARCHIVE)
        log.warning(
            "%s cannot be read as it was written (%s: %s): Helion generates the code instead, at each first "
            "call. Install the package anew.", ARCHIVE, type(error).__name__, error,
        )  # fmt: skip


def is_current(archive: zipfile.ZipFile) -> bool:
    """Whether its programs are of the source of this package."""
    return archive.comment.decode() == program_cache.sources()


@functools.cache
def members() -> frozenset[str]:
    """The names of all programs; none where there is no archive of this source that can be read."""
    try:
        with zipfile.ZipFile(ARCHIVE) as archive:
            if is_current(archive):
                return frozenset(archive.namelist())
            log.info("%s is not used: of another source; `make dist PROGRAMS=1` writes it anew", ARCHIVE)
            return frozenset()
    except FileNotFoundError:
        return frozenset()
    except Exception as error:  # zipfile raises a dozen kinds for damaged archives
        say_unused(error)
        return frozenset()


def is_asked() -> bool:
    """Whether nothing was set that changes generated code, or keeps it from being used."""
    return settings.CACHE_DIR != "off" and not program_cache.changing()


def program(kernel: str, decided: Iterable[object], device: torch.device) -> Callable[..., Any] | None:
    """The host function of a program, None where it is not in the archive."""
    if not (members() and is_asked()):
        return None
    name = member(kernel, decided, device)
    if name not in members():
        return None
    try:
        # opened for each: processes that are forked would share a position in the file
        with zipfile.ZipFile(ARCHIVE) as archive:
            code = archive.read(name).decode()
        return load(code, kernel, str(ARCHIVE / name))
    except Exception as error:  # damaged, or an upgrade of the package beneath this process
        say_unused(error)
        return None


def write(programs: dict[str, str], path: Path = ARCHIVE) -> None:
    """Add programs, by their names, to an archive; the same programs make the same bytes.

    What an archive of another source holds goes.
    """
    partial = path.with_suffix(".partial")
    if path.exists():
        with zipfile.ZipFile(path) as archive:
            if is_current(archive):
                programs = {name: archive.read(name).decode() for name in archive.namelist()} | programs
    with zipfile.ZipFile(partial, "w") as archive:
        archive.comment = program_cache.sources().encode()
        for name in sorted(programs):
            archive.writestr(zipfile.ZipInfo(name), programs[name], zipfile.ZIP_DEFLATED)
    partial.replace(path)
