"""Time forward and exact backward beside a copy of the same bytes, PyTorch, torch.compile and peers.

    python -m benchmarks.sinkhorn.bench --out docs/bench              # about 7 minutes on one H200
    python -m benchmarks.sinkhorn.bench --quick                       # both forms, one size each, under 90 s
    python -m benchmarks.sinkhorn.bench --report-only docs/bench/bench.csv --out docs/bench   # no GPU

Writes bench.csv, after every job, and from it report.md and plots.  Times are medians with 20 %
and 80 % quantiles; configs are those `sinkhorn` takes by itself.  Nothing is downloaded: a peer
that is not installed, or whose files are not under HELION_SINKHORN_PEERS, is reported as left out.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from benchmarks import command


def make_parser() -> argparse.ArgumentParser:
    parser = command.parser("sinkhorn.bench", __doc__)
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="both forms, few batches, no compile, no peers")
    parser.add_argument("--report-only", type=Path, metavar="CSV", help="render this file, measure nothing")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--no-peers", action="store_true", help="leave other packages out")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny smoke run")
    parser.add_argument("--limit", type=float, help="seconds in all (default 520; quick 85)")
    return parser


if __name__ == "__main__":
    # what follows imports torch, which takes seconds
    make_parser().parse_args()

from benchmarks.jobs import Table, measure, of_now
from benchmarks.sinkhorn.worker import Job

LARGEST_BYTES = 8 << 30
"""Most bytes of logits, upstream gradient and result together; larger batches are skipped."""
LIMITS = {"quick": 85.0, "full": 520.0}
FIRST_COLUMNS = (
    "section", "function", "n", "batch", "dtype", "iterations", "pass", "timer", "us", "us_20", "us_80",
    "quantity", "bytes", "seconds", "error", "gradient_error", "note", "package_version",
)  # fmt: skip


def powers(*exponents: int) -> tuple[int, ...]:
    return tuple(1 << e for e in exponents)


FULL = {
    4: powers(7, 10, 12, 13, 15, 17, 18, 20, 22),
    8: powers(7, 10, 13, 15, 17, 18, 20, 22),
    16: powers(7, 10, 13, 16, 18, 20, 22),
    32: powers(14),
    64: powers(7, 10, 12, 14, 16, 18),
    128: powers(10),
}
QUICK = {4: powers(7, 13, 20), 8: powers(18), 16: powers(16), 32: powers(14), 64: powers(12), 128: powers(10)}
SMOKE = {4: powers(5, 7), 8: powers(5)}
PEER_BATCHES = {4: powers(12, 13, 17, 20), 8: powers(17)}


def waves(mode: str, device: str, with_compile: bool, with_peers: bool) -> list[list[Job]]:
    """Jobs that get ready together, in the order in which they are measured."""
    from benchmarks.sinkhorn import peers

    smoke = device != "cuda"
    shapes = SMOKE if smoke else {"quick": QUICK, "full": FULL}[mode]
    short = 2.0 if smoke else 20.0
    base = Job("sweep", "sweep", (peers.FLOOR, peers.OURS), device=device, milliseconds=short)

    def fitting(n: int, batches: tuple[int, ...], size: int) -> tuple[int, ...]:
        return tuple(b for b in batches if 3 * size * n * n * b <= LARGEST_BYTES)

    own = [replace(base, n=n, batches=fitting(n, batches, 4)) for n, batches in shapes.items()]
    own.append(replace(base, section="host", task="host", functions=()))
    if mode == "quick":
        logs = [replace(job, functions=(f"{peers.OURS} log",)) for job in own if job.functions]
        return [own, logs]
    own.append(replace(base, section="lanes", task="lanes", functions=(), batches=(32, 128)))
    few = SMOKE if smoke else {4: powers(13, 20), 8: powers(18), 16: powers(16)}
    variants = [
        replace(base, n=n, batches=batches, dtype=dtype, functions=functions)
        for n, batches in few.items()
        for dtype, functions in (
            ("bfloat16", (peers.FLOOR, peers.OURS)),
            ("float32", (f"{peers.OURS} log",)),
        )
    ]
    others = ["eager", *(peers.PEERS if with_peers else ())]
    sizes = SMOKE if smoke else PEER_BATCHES
    # a pass of eager PyTorch takes 15 ms: enough of them
    longer = {"eager": 3 * short}
    beside = [
        replace(base, functions=(name,), n=n, batches=batches, milliseconds=longer.get(name, short))
        for name in others
        for n, batches in sizes.items()
        if not peers.FUNCTIONS[name].sizes or n in peers.FUNCTIONS[name].sizes
    ]
    if with_compile:
        # it compiles anew for every batch: side by side
        beside += [
            replace(base, functions=(peers.COMPILED,), n=n, batches=(batch,), milliseconds=3 * short)
            for n, batches in sizes.items()
            for batch in batches
        ]
    return [own, variants, beside, [replace(base, section="first call", task="first calls", functions=())]]


def render(path: Path, out: Path) -> None:
    try:
        from benchmarks.sinkhorn import report
    except ModuleNotFoundError as error:
        print(f"no report: {error}; install .[bench] and run with --report-only {path} --out {out}")
        return
    report.render(path, out)
    print(f"wrote {out}/report.md")


def main() -> None:
    parser = make_parser()
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    if options.report_only:
        command.need_packages(matplotlib="matplotlib", pandas="pandas")
        render(options.report_only, out)
        return
    command.need_gpu(
        parser,
        options.device,
        "--device cpu runs the same code on tiny batches, --report-only CSV renders an earlier run",
    )
    mode = "quick" if options.quick else "full"
    table = Table(out / "bench.csv", {"mode": mode, **of_now()}, FIRST_COLUMNS)
    from benchmarks.sinkhorn import peers

    if mode == "full":
        for name, why in peers.LEFT_OUT.items():
            table.add({"section": "left out", "function": name, "note": why})
    jobs = waves(mode, options.device, not options.no_compile, not options.no_peers)
    measure(table, jobs, options.limit or LIMITS[mode], workers=2 * (os.cpu_count() or 1))
    table.write()
    render(table.path, out)


if __name__ == "__main__":
    main()
