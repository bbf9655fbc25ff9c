"""Generated code that comes with the package, so that a first call of a tuned shape imports no Helion.

programs/<kernel>.xz has the programs of a kernel's entries in tuning_cache/, for the stacks under which
`python -m ci.programs` ran.  A file is used only if it was made of the kernel's present source.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import lzma
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from helion_sinkhorn.configs import settings, store
from helion_sinkhorn.configs.atomic import replace
from helion_sinkhorn.runtime import program_cache
from helion_sinkhorn.runtime.adapted import adapted
from helion_sinkhorn.runtime.fingerprint import fingerprint_of
from helion_sinkhorn.runtime.kernel import Kernel
from helion_sinkhorn.runtime.standalone import load

log = logging.getLogger("helion_sinkhorn")
FOLDER = Path(__file__).resolve().parents[1] / "programs"
MAKERS = "bound", "code_of"
"""The functions of runtime.generated that make a program of a kernel."""
Programs = Mapping[str, str]
"""The texts of a kernel by `key`."""


def stack() -> str:
    """The versions that decide the text of a program: Helion 1.5.1 masks sums that 1.5.0 does not.

    It does not depend on torch, Python and the patch version of Triton.
    """
    return f"Triton {store.triton_minor()}, Helion {store.installed('helion')}"


def source(kernel: Kernel) -> str:
    """A digest of the source of a kernel and of MAKERS."""
    makers = [fingerprint_of(f"helion_sinkhorn.runtime.generated:{name}") for name in MAKERS]
    return "-".join([fingerprint_of(kernel.body), *makers])


def key(decided: Iterable[object], device: torch.device) -> str:
    """The name of a program among those of its kernel and stack, by what `generated.decisions` returns."""
    text = repr((*decided, program_cache.target(device)))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def path_of(kernel: Kernel) -> Path:
    return FOLDER / f"{kernel.name}.xz"


def read(kernel: Kernel) -> dict[str, Programs]:
    """The programs of a kernel by stack; none if no readable file of its present source exists."""
    path = path_of(kernel)
    try:
        held = json.loads(lzma.decompress(path.read_bytes()))
        if held["source"] == source(kernel):
            texts = held["texts"]
            return {of: {k: texts[at] for k, at in names.items()} for of, names in held["stacks"].items()}
        log.info("%s is not used: of another source; `python -m ci.programs` writes it anew", path)
    except FileNotFoundError:
        pass
    except Exception as error:  # lzma and json raise many errors for damaged files
        log.warning(
            "%s cannot be read as it was written (%s: %s): Helion generates the code instead, at each first "
            "call. Install the package anew.", path, type(error).__name__, error,
        )  # fmt: skip
    return {}


@functools.lru_cache(maxsize=8)
def programs(kernel: Kernel) -> Programs:
    """The programs of a kernel for this process's stack."""
    return read(kernel).get(stack(), {})


def is_asked() -> bool:
    """Whether no setting changes generated code or turns it off."""
    return settings.CACHE_DIR != "off" and not program_cache.changing()


def program(
    kernel: Kernel, name: str, decided: Iterable[object], device: torch.device
) -> Callable[..., Any] | None:
    """The host function `name` of a program; None if none came with the package."""
    if not is_asked():
        return None
    of = key(decided, device)
    code = programs(kernel).get(of)
    if code is None:
        return None
    return load(adapted(code, kernel, device), name, str(path_of(kernel) / f"{of}.py"))


def write(kernel: Kernel, stacks: Mapping[str, Programs]) -> None:
    """Replace the file of a kernel by these programs; the same programs make the same bytes."""
    texts = sorted({text for programs in stacks.values() for text in programs.values()})
    at = {text: place for place, text in enumerate(texts)}
    held = {
        "source": source(kernel),
        "stacks": {
            of: {k: at[text] for k, text in sorted(programs.items())}
            for of, programs in sorted(stacks.items())
        },
        "texts": texts,
    }
    FOLDER.mkdir(exist_ok=True)
    packed = lzma.compress(json.dumps(held, separators=(",", ":")).encode(), preset=9 | lzma.PRESET_EXTREME)
    replace(path_of(kernel), packed)
