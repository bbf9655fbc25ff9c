"""Generated code on disk, which later processes run without Helion.

A file is executed only if it and its folder belong to this user, nobody else may write them, and its first
line is the hash of the rest.  Any other file is ignored, and the next process that generates it replaces it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from helion_sinkhorn.configs import settings, store
from helion_sinkhorn.configs.atomic import replace
from helion_sinkhorn.runtime.compiled_source import sources
from helion_sinkhorn.runtime.standalone import load

log = logging.getLogger("helion_sinkhorn")
PARTIAL = re.compile(r"\.\w+\.[0-9a-f]{40}\.\w{8}\.tmp")
"""Names of files that `configs.atomic.replace` is writing for a `file_name`."""
ABANDONED_S = 3600


def folder() -> Path | None:
    """The folder of generated code; None if HELION_SINKHORN_CACHE_DIR is "off" or the user has no home."""
    named = settings.CACHE_DIR
    if named == "off" or os.name != "posix":
        return None
    if named:
        return Path(os.path.abspath(os.path.expanduser(named)))
    base = os.environ.get("XDG_CACHE_HOME", "")
    # the path is relative if this user has no home
    base = base if os.path.isabs(base) else os.path.expanduser("~/.cache")
    return Path(base) / "helion_sinkhorn" if os.path.isabs(base) else None


def file_name(kernel: str, decided: Iterable[object], device: torch.device) -> str:
    """The file name of one program, which differs wherever anything differs that its code depends on.

    Of what decided the program the repr counts; the kernel's name is for people who look for the file.
    """
    text = repr((kernel, *decided, sources(), versions(), target(device)))
    return f"{kernel}.{hashlib.sha256(text.encode()).hexdigest()[:40]}.py"


# called before any kernel is imported, to notice a change of the source in between
sources()
_edited = threading.Event()


def is_unchanged() -> bool:
    """Whether the source on disk has never changed since it named the first program.

    After an edit or an upgrade this process may have imported modules of both sources.
    """
    try:
        same = sources.__wrapped__() == sources()
    except OSError:  # a file that is removed while it is read
        same = False
    if not same and not _edited.is_set():
        _edited.set()
        log.warning(
            "the source of helion_sinkhorn changed beneath this process, which keeps no generated code "
            "from now on: start it anew"
        )
    return not _edited.is_set()


@functools.cache
def versions() -> tuple[object, ...]:
    """Versions of what generates and compiles code, and the variables that change what they do."""
    import triton

    helion = store.installed("helion")
    return sys.version_info[:2], torch.__version__, triton.__version__, helion, changing()


def changing() -> list[tuple[str, str]]:
    """The variables that change what Helion generates, with their values."""
    return sorted(
        (name, value)
        for name, value in os.environ.items()
        if name.startswith(("HELION_", "TORCHINDUCTOR_"))
        and not name.startswith("HELION_SINKHORN_")
        and not name.endswith("CACHE_DIR")
    )


def target(device: torch.device) -> tuple[object, ...]:
    """The properties of a device that decide generated code."""
    if device.type != "cuda":
        return (device.type,)
    properties = torch.cuda.get_device_properties(device)
    arch = properties.gcnArchName.split(":")[0] if torch.version.hip else (properties.major, properties.minor)
    return bool(torch.version.hip), arch, properties.multi_processor_count, properties.warp_size


def is_ours(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to this user, and nobody else may write it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@functools.cache
def say_foreign(path: Path) -> None:
    """Warn once a process that nothing in this folder is executed."""
    log.warning(
        "%s belongs to another user, or others may write it: nothing that is kept there is executed, and "
        "Helion generates code in every process. chmod go-w it, or name another folder by "
        "HELION_SINKHORN_CACHE_DIR (off: keep none).", path,
    )  # fmt: skip


def _content(name: str) -> bytes:
    """The content of a file that may be executed; an OSError if there is none."""
    at = folder()
    if at is None:
        raise FileNotFoundError
    # descriptors make sure that the checked file is read, even if somebody renames files meanwhile
    inside = os.open(at, os.O_RDONLY | os.O_DIRECTORY)
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inside)
        with open(file, "rb") as opened:
            status = os.fstat(file)
            for path, of in ((at, os.fstat(inside)), (at / name, status)):
                if not is_ours(of):
                    say_foreign(path)
                    raise PermissionError(path)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{at / name} is no regular file")
            return opened.read()
    finally:
        os.close(inside)


def _heading(code: str) -> str:
    return f"# sha256 {hashlib.sha256(code.encode()).hexdigest()}\n"


def kept(name: str, host: str, adapted: Callable[[str], str] = str) -> Callable[..., Any] | None:
    """The function `host` of a kept program, as `adapted` makes it; None if there is none that may run."""
    try:
        heading, _, code = _content(name).decode().partition("\n")
        if heading + "\n" != _heading(code):
            raise ValueError("its first line is not the hash of the rest")
        return load(adapted(code), host, str(folder() / name))
    except FileNotFoundError:
        return None
    except Exception as error:  # damaged, or of other versions with the same name
        log.info("%s in %s is not used (%s: %s)", name, folder(), type(error).__name__, error)
        return None


def keep(name: str, code: str) -> None:
    """Write a program in one step; a failure is no error."""
    if (at := made_folder()) is None:
        return
    try:
        _clean(at)
        path = at / name
        # `kept` follows no link, and `replace` would write through it
        if path.is_symlink():
            path.unlink()
        replace(path, _heading(code) + code, 0o600)
    except OSError as error:
        log.info("generated code is not kept in %s (%s)", at, error)


@functools.cache
def _clean(at: Path) -> None:
    """Remove, once a process, the files of writers that were killed."""
    for left in at.glob(".*.tmp"):
        # another process may be writing a younger one
        with contextlib.suppress(OSError):
            if PARTIAL.fullmatch(left.name) and time.time() - left.lstat().st_mtime > ABANDONED_S:
                left.unlink()


def made_folder() -> Path | None:
    """The folder, which is made if it is missing; None and a log line if nothing can be kept in it."""
    at = folder()
    if at is None:
        return None
    try:
        at.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_ours(at.stat()):
            return at
        say_foreign(at)
    except OSError as error:
        log.info("generated code is not kept in %s (%s)", at, error)
    return None


def is_usable() -> bool:
    """Whether programs can be kept in the folder and executed from there; it need not exist yet."""
    at = folder()
    if at is None:
        return False
    there = next(path for path in (at, *at.parents) if path.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK) and (there != at or is_ours(at.stat()))


def usage() -> tuple[int, int]:
    """(files, bytes) of all programs that are kept."""
    at = folder()
    sizes = [path.stat().st_size for path in at.glob("*.py")] if at is not None and at.is_dir() else []
    return len(sizes), sum(sizes)
