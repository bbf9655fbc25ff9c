"""Keys that share their binaries, and their entries on disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helion_sinkhorn.configs import lookup, store
from helion_sinkhorn.configs.atomic import locked
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS, kernel_calls
from helion_sinkhorn.lab.tuning import writer
from helion_sinkhorn.lab.tuning.options import Options
from helion_sinkhorn.runtime.kernel import Choice, in_space


@dataclass(frozen=True)
class Group:
    """Keys of one kernel that differ in the batch alone."""

    kernel: str
    call: Any
    """What configs are chosen for, of the type in the kernel's row."""
    batches: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.kernel} {self.call}"


def groups_of(workloads: Iterable[Any], kernel: str | None = None) -> list[Group]:
    """The groups of these workloads, in their order; of one kernel where one is named."""
    batches: dict[tuple[str, Any], set[int]] = {}
    for workload in workloads:
        for name, call in kernel_calls(workload):
            if kernel in (None, name):
                batches.setdefault((name, call), set()).add(KERNELS[name].batch(call, workload.batch))
    return [Group(*key, tuple(sorted(b))) for key, b in batches.items()]


def entry_key(group: Group, batch: int) -> dict[str, Any]:
    return {**dict(group.call.key), "batch": batch, "triton": store.triton_minor()}


def entries_on_disk(folder: Path, device: str, kernel: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Entries of a file by identity, each with its run's fingerprint."""
    path, data = folder / device / f"{kernel}.json", None
    if path.exists():
        # a file that cannot be read is moved aside
        with locked(path):
            data = writer.load(path)
    data = data or {"runs": {}, "entries": []}
    return {
        writer.identity(e): {**e, "fingerprint": data["runs"].get(e["run"], {}).get("fingerprint")}
        for e in data["entries"]
    }


def entry_before(group: Group, batch: int, options: Options) -> store.Entry | None:
    """The entry that look-up finds for a key in a run's folder, maybe of another Triton, batch or device.

    None where the kernel's default config is used.
    """
    device, kernel = DEVICES[options.device], KERNELS[group.kernel]
    entry = lookup.find(device, kernel.name, group.call.key, batch, [options.out])
    return entry if entry and in_space(kernel, choice_of(group, entry), group.call, device) else None


def choice_of(group: Group, entry: store.Entry) -> Choice:
    """The choice an entry stores."""
    return Choice(group.kernel, entry.config, entry.variant, entry.source, True)


def jsonable(items: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Items as JSON holds them, by name."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in sorted(items)}


def spelled(choice: Choice) -> str:
    """A config in words."""
    return ", ".join(f"{k}={v}" for k, v in (*choice.config, *choice.variant))


def same(a: Choice, b: Choice) -> bool:
    return (jsonable(a.config), jsonable(a.variant)) == (jsonable(b.config), jsonable(b.variant))


def distinct(choices: Iterable[Choice | None]) -> list[Choice]:
    """Without None and repetitions, in order."""
    kept: list[Choice] = []
    for choice in choices:
        if choice is not None and not any(same(choice, k) for k in kept):
            kept.append(choice)
    return kept
