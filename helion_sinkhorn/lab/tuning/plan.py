"""The keys that are left to tune, their costs, and the rank that tunes each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from helion_sinkhorn.configs.device import DEVICES, Device
from helion_sinkhorn.lab.operators import KERNELS, fingerprint
from helion_sinkhorn.lab.tuning import writer
from helion_sinkhorn.lab.tuning.finals import FINALISTS, ROUNDS
from helion_sinkhorn.lab.tuning.groups import Group, entries_on_disk, entry_key
from helion_sinkhorn.lab.tuning.options import Options
from helion_sinkhorn.runtime.kernel import candidates

SECONDS_COMPILE, SECONDS_GENERATE, SECONDS_TIME = 3.0, 0.6, 0.05
"""Seconds of one candidate on an H200 and its host.  Elsewhere they say how much longer one key takes than
another, not how long."""
USUAL_WORKERS = 8
"""Compiling processes for which ranks share keys out: each has its own number, and all must share alike."""


def seconds(group: Group, device: Device, workers: int, evidence: str = "measured") -> list[float]:
    """A rough cost of each key of a group: the first waits for the compilers, and all are timed or none."""
    count = len(candidates(KERNELS[group.kernel], group.call, device))
    compiling, others = count * SECONDS_COMPILE / workers, len(group.batches) - 1
    if evidence == "compiled":
        return [compiling, *[0.0] * others]
    timing, finals = count * SECONDS_TIME, (FINALISTS + 2) * (ROUNDS["quick"] / 2) * SECONDS_TIME
    # compilers work on this group while the one before is timed
    first = max(count * SECONDS_GENERATE + timing, compiling - others * timing)
    return [first + finals, *[timing + finals] * others]


def share_out(groups: Sequence[Group], costs: Sequence[float], rank: int, world: int) -> list[Group]:
    """The share of one of `world` ranks: each group, the dearest first, goes to the rank with least."""
    load, owner = [0.0] * world, {}
    for index in sorted(range(len(groups)), key=lambda i: -costs[i]):
        owner[index] = min(range(world), key=load.__getitem__)
        load[owner[index]] += costs[index]
    return [g for index, g in enumerate(groups) if owner[index] == rank]


def unfinished(groups: Iterable[Group], folder: Path, device: str, evidence: str) -> list[Group]:
    """The groups without the batches that have an entry as good as this run's from the same source."""
    left = []
    for group in groups:
        have = entries_on_disk(folder, device, group.kernel)

        def fresh(batch, have=have, group=group):
            entry = have.get(writer.identity({"key": entry_key(group, batch)}))
            return (
                entry is not None
                and entry["fingerprint"] == fingerprint(group.kernel)
                and writer.EVIDENCE.index(entry["evidence"]) >= writer.EVIDENCE.index(evidence)
            )

        batches = tuple(b for b in group.batches if not fresh(b))
        if batches:
            left.append(Group(group.kernel, group.call, batches))
    return left


def groups_of_rank(groups: Sequence[Group], options: Options, evidence: str = "measured") -> list[Group]:
    """This rank's share of the plan, without the keys that have fresh entries unless forced."""
    device = DEVICES[options.device]
    costs = [sum(seconds(group, device, USUAL_WORKERS)) for group in groups]
    # shared out before looking at what is done: other ranks are writing while this one looks
    share_of_it = share_out(groups, costs, options.rank, options.world)
    return share_of_it if options.force else unfinished(share_of_it, options.out, options.device, evidence)


def work_left(
    groups: Sequence[Group], options: Options, evidence: str = "measured"
) -> dict[tuple[str, Any, int], float]:
    """The keys that `tune` would go through, (kernel, call, batch), with their rough costs."""
    device = DEVICES[options.device]
    return {
        (group.kernel, group.call, batch): cost
        for group in groups_of_rank(groups, options, evidence)
        for batch, cost in zip(group.batches, seconds(group, device, options.workers, evidence), strict=True)
    }


def plan(groups: Sequence[Group], options: Options, evidence: str = "measured") -> Iterator[str]:
    """What `tune` would do, in words."""
    device, left = DEVICES[options.device], groups_of_rank(groups, options, evidence)
    if not left:
        yield (
            "no key is left: each has an entry of these kernels for this Triton; "
            "--force (make: FORCE=1) tunes them again"
        )
        return
    count = sum(len(candidates(KERNELS[g.kernel], g.call, device)) for g in left)
    yield (
        f"keys: {sum(len(g.batches) for g in left)}, in groups: {len(left)}, candidates: {count}, "
        f"compiling processes: {options.workers}; the first key says how long the others take"
    )
    for group in left:
        yield f"  {group.name}, batches {', '.join(map(str, group.batches))}"
