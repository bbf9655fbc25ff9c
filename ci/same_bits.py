"""Whether a result's arithmetic depends on the place of a matrix or token in its batch, on NVIDIA's machine
code: python -m ci.same_bits [--device h200] [--workloads NAME[:WHAT,...] ...]

Each kernel is compiled on this CPU and its machine code followed with formulas in place of floats (ci/sass).
An entry has the same bits everywhere if it is the same formula of its own matrix everywhere: in each place of
a block, in a batch of one, of a number that 16 divides and of another, for which Triton compiles programs of
their own, and with every config where that is promised.  No input has to show a difference, and no tolerance
hides one.  WHAT is a result of the workload, or a kernel.  The exit status is the verdict.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path


def make_parser(nvidia=None, chosen=str, usual=None, cache=None) -> argparse.ArgumentParser:
    """Without the names and defaults that an import of torch brings, of flags and numbers alone."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=nvidia, default="h200")
    parser.add_argument("--workloads", nargs="+", type=chosen, metavar="NAME[:WHAT,...]",
                        default=usual)  # fmt: skip
    parser.add_argument("--served", action="store_true", help="only the config that each call gets")
    parser.add_argument("--cache", type=Path, default=cache, help="folder of compiled programs")
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # what follows imports torch, which takes seconds; --help has names from there
    make_parser().parse_args()

import numpy as np
import torch

from ci.emulate import CACHE, selected
from ci.emulator.launch import as_on_device
from ci.gate.gate import Candidate
from ci.operators import operator_of
from ci.sass.formulas import Formulas
from ci.sass.launch import Trace, following, present
from ci.sass.machine import Unknown
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.workloads import WORKLOADS

DEFAULT = (
    "mhc_fp32", "mhc_bf16", "driver_8", "tail_5x3", "wide_4x8", "masked_8", "implicit_4",
    "hc_model:pre,post,comb,dmixes", "hc_bf16:pre,post,comb,dmixes", "hc_two_streams:pre,post,comb,dmixes",
    "hc_three_streams:pre,post,comb,dmixes", "hc_five_streams:pre,post,comb,dmixes",
    "hc_eight_streams:pre,post,comb,dmixes", "hc_partials:pre,post,comb",
    "hc_partials_padded:pre,post,comb",
    "hc_post_tokens:hc_post_forward,hc_post_backward", "hc_post_five_streams:hc_post_backward",
    "hc_post_eight_streams:hc_post_backward",
    "hc_pre_fp32", "hc_pre_three_streams",
)  # fmt: skip
"""Results that belong to one matrix or token each."""


def batches(candidate: Candidate) -> tuple[int, int, int]:
    """One; a block and one more; a block and more in a number that 16 divides."""
    blocks = candidate.config.get("block_sizes", 1)
    block = max(blocks) if isinstance(blocks, Sequence) else blocks
    return 1, block + 1, -(-block // 16) * 16 + 16


def followed(trace: Trace, candidate: Candidate, name: str, inputs: Sequence[torch.Tensor]) -> np.ndarray:
    """The formulas of a candidate's result, (batch, entries)."""
    given = [trace.name(f"{name} {k}", t.clone(), by_row=True) for k, t in enumerate(inputs)]
    result = candidate.run(*given)
    trace.kept.append(result)
    return trace.of(result).reshape(len(result), -1)


def differences(
    trace: Trace,
    candidate: Candidate,
    name: str,
    inputs: Sequence[torch.Tensor],
    first: dict[str, np.ndarray],
) -> Iterator[str]:
    """Where a candidate's arithmetic differs from that of a batch of one.

    first: formulas of a batch of one, by result, of other candidates; its own are added where there are none.
    """
    for batch in batches(candidate):
        rows = torch.arange(batch) % len(inputs[0])
        found = followed(trace, candidate, name, [t[rows].contiguous() for t in inputs])
        alone = first.setdefault(candidate.of, found[0])
        differs = found != alone
        if differs.any():
            row, entry = (int(k[0]) for k in np.nonzero(differs))
            one, other = trace.formulas.first_difference(int(alone[entry]), int(found[row, entry]))
            yield (
                f"in a batch of {batch}, {int(differs.any(1).sum())} have other bits than alone; the first "
                f"is number {row}, in entry {entry}: {told(trace.formulas, one)}, and there "
                f"{told(trace.formulas, other)}"
            )


def told(formulas: Formulas, word: int) -> str:
    """A formula, three operations deep."""
    return formulas.told(word, 2)


def judge(
    name: str, wanted: frozenset[str], key: str, cache: Path, served: bool
) -> Iterator[tuple[Candidate, list[str]]]:
    """What differs, for every candidate of a workload that computes a result wanted, or those that serve."""
    device = present(key, cache)
    workload = WORKLOADS[name]
    # a token for an element: groups of tokens would stand at different places
    changed = {"batch": 4, **({"tokens": 1} if hasattr(workload, "tokens") else {})}
    workload = dataclasses.replace(workload, **changed)
    operator = operator_of(workload)
    inputs = operator.inputs(workload, 1 << 14)
    trace, first = Trace(device, cache), {}
    with following(trace):
        with as_on_device():
            candidates = operator.candidates(workload, *inputs)
        for candidate in candidates:
            if (candidate.served or not served) and (not wanted or wanted & {candidate.of, candidate.kernel}):
                others = first if candidate.of in operator.same_bits else {}
                try:
                    yield candidate, list(differences(trace, candidate, name, inputs, others))
                except Unknown as why:
                    yield candidate, [f"not followed: {why}"]


def main() -> int:
    nvidia = [k for k, d in DEVICES.items() if d.arch == "sm90"]
    given = make_parser(nvidia, selected, [selected(name) for name in DEFAULT], CACHE).parse_args()
    wrong = 0
    for name, wanted in given.workloads:
        begin = time.monotonic()
        for candidate, found in judge(name, wanted, given.device, given.cache.resolve(), given.served):
            wrong += len(found)
            seconds = time.monotonic() - begin
            verdict = "; ".join(found) or "one formula everywhere"
            print(f"{name}: {candidate.kernel}: {candidate.of}: {verdict} ({seconds:.0f} s)", flush=True)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
