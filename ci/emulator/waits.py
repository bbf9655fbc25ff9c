"""Counters of outstanding memory instructions, and the registers that must not be used before they are
waited for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ci.emulator.effects import Effects
from ci.emulator.memory import Finding
from ci.emulator.text import Instruction

COUNTERS = {"memory": "vm", "lds": "lgkm", "constant": "lgkm"}


def wanted(ins: Instruction) -> dict[str, int]:
    """What s_waitcnt waits for: counter -> outstanding instructions that may remain."""
    counts = {}
    for word in ins.operands:
        counter = re.fullmatch(r"(vm|lgkm|exp)cnt\((\d+)\)", word)
        if not counter:
            raise ValueError(f"{ins}: a counter this does not know")
        counts[counter[1]] = int(counter[2])
    return counts


@dataclass
class Waits:
    """What waves at one instruction, all of which have issued the same, have not waited for.

    vmcnt counts loads and stores, which end in order.  lgkmcnt counts LDS, in order, and scalar loads, in
    any:
    while one of these is out only a wait for 0 says anything.
    """

    issued: dict[str, int] = field(default_factory=lambda: {"vm": 0, "lgkm": 0})
    done: dict[str, int] = field(default_factory=lambda: {"vm": 0, "lgkm": 0})
    pending: dict[int, tuple[str, int, Instruction]] = field(default_factory=dict)
    """Register -> (kind of its load, number, the load)."""
    last_constant: int = 0
    last_lds_write: int = 0

    def copy(self) -> Waits:
        return Waits(
            dict(self.issued), dict(self.done), dict(self.pending), self.last_constant, self.last_lds_write
        )

    def use(self, ins: Instruction, effects: Effects, touched: tuple[int, ...]) -> None:
        """An instruction issues.

        Raises:
            Finding: it uses a register that a load has yet to write.
        """
        if self.pending:
            for register in touched:
                load = self.pending.get(register)
                # loads of one kind, scalar ones aside, write in their order
                if load and not (
                    effects.loads and effects.kind == load[0] != "constant" and register not in effects.reads
                ):
                    raise Finding("wait", ins, f"a register of [{load[2]}] is used before it is waited for")
        counter = COUNTERS.get(effects.kind)
        if counter is None:
            return
        self.issued[counter] += 1
        number = self.issued[counter]
        if effects.kind == "constant":
            self.last_constant = number
        if effects.loads:
            for register in effects.writes:
                self.pending[register] = effects.kind, number, ins
        elif effects.kind == "lds":
            self.last_lds_write = number

    def wait(self, counters: dict[str, int]) -> None:
        for counter, remaining in counters.items():
            if counter == "exp":
                continue
            unordered = counter == "lgkm" and self.last_constant > self.done["lgkm"]
            if remaining and unordered:
                continue
            self.done[counter] = max(self.done[counter], self.issued[counter] - remaining)
        self.pending = {
            register: load
            for register, load in self.pending.items()
            if load[1] > self.done[COUNTERS[load[0]]]
        }

    def barrier(self, ins: Instruction) -> None:
        """Raises:
        Finding: other waves may read what this one has not finished writing."""
        if self.last_lds_write > self.done["lgkm"]:
            raise Finding("wait", ins, "a store to LDS is not waited for before the barrier")
