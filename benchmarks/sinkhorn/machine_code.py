"""Instructions, registers and a predicted limit of the default kernels on several devices, compiled, not run.

    python -m benchmarks.sinkhorn.machine_code          # h200, b200, mi350; about 3 minutes, no GPU
    python -m benchmarks.sinkhorn.machine_code --devices h200 --n 4

Versions matter: a Triton that lays matrices out over more threads can triple the instructions.
The prediction is the slowest single resource at full rate, as if all others hid behind it: no run
of these instructions can be faster, and real ones are slower.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from benchmarks import command


def make_parser(devices=None) -> argparse.ArgumentParser:
    """Without the names that an import of torch brings, of flags and numbers alone."""
    parser = command.parser("sinkhorn.machine_code", __doc__)
    parser.add_argument("--devices", nargs="+", choices=devices, default=devices)
    parser.add_argument("--n", nargs="+", type=int, default=[4, 8, 16], help="sizes (default 4 8 16)")
    parser.add_argument("--workers", type=int, default=1, help="compilers side by side")
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # what follows imports torch, which takes seconds; --help has names from there
    make_parser().parse_args()


from helion_sinkhorn.configs.device import DEVICES, Device
from helion_sinkhorn.machine.binary import Binary, Job
from helion_sinkhorn.machine.compiler import compile_for
from helion_sinkhorn.tuning.markdown import of_records

T = 20
BATCH = 1 << 20


@dataclass(frozen=True)
class Rates:
    """Peak rates of a device; lanes are those of one compute unit in a clock."""

    ghz: float
    terabytes: float
    """Terabytes of memory traffic a second."""
    source: str
    lanes: int
    special_lanes: int = 16
    shuffle_lanes: int = 32


RATES = {
    "h200": Rates(1.98, 4.8, "NVIDIA H200 datasheet: 67 TFLOPS = 132 SMs x 256 x 1.98 GHz; 4.8 TB/s", 128),
    "b200": Rates(1.98, 8.0, "NVIDIA HGX B200 datasheet: 75 TFLOPS = 148 SMs x 256 x 1.98 GHz; 8 TB/s", 128),
    "mi350": Rates(2.2, 8.0, "AMD MI350X datasheet: 2.2 GHz, 8 TB/s; CDNA ISA: 4 x 16 lanes a unit", 64),
}
SHOWN = ("instructions", "fma", "mul", "add", "two-wide fp32", "reciprocal", "exp", "log", "move",
         "cross-lane", "shared", "barrier", "global load", "global store")  # fmt: skip


def default_jobs(device: Device, sizes: Sequence[int]) -> list[Job]:
    """Forward and backward in float32, deepseek form, under the kernels' own defaults."""
    from helion_sinkhorn.operators import KERNELS
    from helion_sinkhorn.ops.sinkhorn.launch import backward_kernel
    from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
    from helion_sinkhorn.runtime.kernel import default_choice

    calls = [SinkhornCall(True, 1, "float32", n, n, T) for n in sizes]
    return [
        Job(call, default_choice(KERNELS[name], call, device))
        for call in calls
        for name in ("sinkhorn_forward", backward_kernel(call))
    ]


def matrices_per_block(binary: Binary) -> int:
    return dict(binary.job.choice.config)["block_sizes"][0]


def per_matrix(binary: Binary) -> dict[str, float]:
    """Lane instructions a matrix by class: what all threads of a block run, shared among its matrices."""
    share = binary.threads / matrices_per_block(binary)
    return {name: count * share for name, count in binary.executed.items()}


def limits(binary: Binary, batch: int = BATCH) -> dict[str, float]:
    """Microseconds that each resource needs for `batch` matrices at its peak rate."""
    device, rates, counts = DEVICES[binary.device], RATES[binary.device], per_matrix(binary)
    call = binary.job.call

    def microseconds(lanes: float, width: int) -> float:
        return batch * lanes / width / device.compute_units / (rates.ghz * 1e3)

    special = sum(counts.get(name, 0.0) for name in ("reciprocal", "exp", "log"))
    tensors = 2 if binary.job.choice.kernel == "sinkhorn_forward" else 3
    moved = batch * tensors * call.n * call.m * 4
    return {
        "issue": microseconds(counts["instructions"], rates.lanes),
        "special functions": microseconds(special, rates.special_lanes),
        "exchange": microseconds(counts.get("cross-lane", 0.0), rates.shuffle_lanes),
        "memory": moved / rates.terabytes / 1e6,
    }


def row(binary: Binary) -> dict[str, object]:
    """One line of the table."""
    call = binary.job.call
    line: dict[str, object] = {
        "device": binary.device, "kernel": binary.job.choice.kernel.removeprefix("sinkhorn_"), "n": call.n,
        "registers": binary.registers, "spills": binary.spills, "warps a unit": binary.occupancy,
    }  # fmt: skip
    if binary.executed:
        counts = per_matrix(binary)
        line |= {name: f"{counts.get(name, 0.0):,.0f}" for name in SHOWN}
        found = limits(binary)
        slowest = max(found, key=found.__getitem__)
        line["at least, us"] = f"{found[slowest]:.1f} ({slowest})"
    else:
        line |= dict.fromkeys(SHOWN, "")
        line["at least, us"] = (
            "; ".join(binary.problems) if not binary.compiled else "a branch depends on data"
        )
    return line


def markdown(rows: list[dict[str, object]], batch: int = BATCH) -> str:
    """The table with its label and sources."""
    lines = [
        "Compiled, not measured: instructions that all threads together run for one matrix, by class; an",
        f"instruction may be in several. float32, deepseek form, T = {T}, default configs. \"At least\": the",
        f"time of the slowest resource for {batch:,} matrices at its peak rate, all others hidden behind it.",
        "",
        of_records(rows),
        "",
    ]  # fmt: skip
    lines.append(f"- compilers: triton {version('triton')}, helion {version('helion')}")
    used = dict.fromkeys(str(r["device"]) for r in rows)
    return "\n".join(lines + [f"- {key}: {RATES[key].source}" for key in used])


def main() -> None:
    options = make_parser(list(RATES)).parse_args()
    rows = []
    for key in options.devices:
        jobs = default_jobs(DEVICES[key], options.n)
        rows += [row(binary) for binary in compile_for(key, jobs, workers=options.workers)]
    print(markdown(rows))


if __name__ == "__main__":
    main()
