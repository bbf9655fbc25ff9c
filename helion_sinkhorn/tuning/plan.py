"""What is left to tune, what it costs, and which rank does it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from helion_sinkhorn.configs import writer
from helion_sinkhorn.configs.device import DEVICES, Device
from helion_sinkhorn.operators import KERNELS
from helion_sinkhorn.runtime.kernel import candidates
from helion_sinkhorn.tuning.finals import FINALISTS, ROUNDS
from helion_sinkhorn.tuning.fingerprint import fingerprint
from helion_sinkhorn.tuning.groups import Group, entries_on_disk, entry_key
from helion_sinkhorn.tuning.options import Options

SECONDS_COMPILE, SECONDS_GENERATE, SECONDS_TIME = 3.0, 0.6, 0.05
"""Seconds of one candidate on an H200 and its host, for the estimate."""
USUAL_WORKERS = 8
"""Compiling processes for which ranks share keys out: each has its own number, and all must share alike."""


def seconds(group: Group, device: Device, workers: int) -> float:
    """A rough cost of tuning a group."""
    count, batches = len(candidates(KERNELS[group.kernel], group.call, device)), len(group.batches)
    finals = (FINALISTS + 2) * (ROUNDS["quick"] / 2) * SECONDS_TIME
    own = SECONDS_GENERATE + batches * SECONDS_TIME
    return count * max(own, SECONDS_COMPILE / workers) + batches * finals


def share_out(groups: Sequence[Group], costs: Sequence[float], rank: int, world: int) -> list[Group]:
    """What one of `world` ranks takes: the dearest first to whoever has least; order is kept."""
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
    costs = [seconds(group, device, USUAL_WORKERS) for group in groups]
    # shared out before looking at what is done: other ranks are writing while this one looks
    share_of_it = share_out(groups, costs, options.rank, options.world)
    return share_of_it if options.force else unfinished(share_of_it, options.out, options.device, evidence)


def keys_left(groups: Sequence[Group], options: Options, evidence: str = "measured") -> int:
    """Keys that `tune` would go through."""
    return sum(len(group.batches) for group in groups_of_rank(groups, options, evidence))


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
    estimate = sum(seconds(g, device, options.workers) for g in left)
    yield (
        f"keys: {sum(len(g.batches) for g in left)}, in groups: {len(left)}, candidates: {count}, "
        f"compiling processes: {options.workers}; about {estimate:.0f} s"
    )
    for group in left:
        yield f"  {group.name}, batches {', '.join(map(str, group.batches))}"
