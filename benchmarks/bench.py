"""Time this package beside PyTorch, torch.compile, other packages and a copy of the same bytes.

    python -m benchmarks.bench sinkhorn --out docs/bench          # about 7 minutes on one H200
    python -m benchmarks.bench sinkhorn --quick                   # both forms, one size each, under 90 s
    python -m benchmarks.bench sinkhorn --report-only docs/bench/bench.csv --out docs/bench   # no GPU
    python -m benchmarks.bench residual_path --out docs/bench     # 10 minutes; --tokens 8192 --columns 4096
    python -m benchmarks.bench dot_compress --out docs/bench      # some minutes
    python -m benchmarks.bench balance --out docs/bench           # some minutes; --only sinkhorn_balance
    python -m benchmarks.bench linear_attention --site FOLDER     # some minutes; flash-linear-attention there

Each is a table of jobs, every job a process with a time limit: they compile and check side by side, and
measure in turn, alone on the GPU.  The CSV is written after every job; what is not installed, fails or takes
too long is a row with the reason.  Nothing is downloaded: of a package that is in no index, the files are
those under HELION_SINKHORN_PEERS.  Times are in us, medians with 20 % and 80 % quantiles, of the configs that
calls take by themselves; each table's module says how its calls are timed.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from benchmarks import command

SMALL = "--device cpu {} runs the same code"
TABLES = {
    "sinkhorn": (
        "benchmarks.sinkhorn.plan",
        "--device cpu runs the same code on tiny batches, --report-only CSV renders an earlier run",
    ),
    "residual_path": ("benchmarks.residual_path.tasks", SMALL.format("--tokens 64 --columns 128 --many 128")),
    "dot_compress": ("benchmarks.dot_compress", SMALL.format("--batches 1")),
    "balance": ("benchmarks.balance", SMALL.format("--rows 512")),
    "linear_attention": ("benchmarks.linear_attention", SMALL.format("--shape 1 64 2")),
}
"""The module of each, and what runs without a GPU."""


def make_parser() -> argparse.ArgumentParser:
    parser = command.parser("bench", __doc__)
    tables = parser.add_subparsers(dest="table", required=True, metavar="|".join(TABLES))

    def table(name: str, limit: float | None) -> argparse.ArgumentParser:
        own = tables.add_parser(name)
        own.add_argument("--out", type=Path, default=Path("build/bench"), help="folder (default %(default)s)")
        own.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: for a tiny trial")
        own.add_argument("--limit", type=float, default=limit, help="seconds in all")
        own.add_argument("--only", nargs="+", metavar="FUNCTION", help="of those in the first column")
        return own

    own = table("sinkhorn", None)
    own.add_argument("--quick", action="store_true", help="both forms, few batches, no compile, no peers")
    own.add_argument("--report-only", type=Path, metavar="CSV", help="render this file, measure nothing")
    own = table("residual_path", 600.0)
    own.add_argument("--tokens", type=int, default=1 << 13)
    own.add_argument("--columns", type=int, nargs="+", default=[4096, 7168], help="C, entries of a stream")
    own.add_argument("--operations", nargs="+", metavar="OPERATION", help="of those in the second column")
    own.add_argument("--many", type=int, default=1 << 20, help="tokens of the second size of coefficients")
    own = table("dot_compress", 600.0)
    own.add_argument("--batches", type=int, nargs="+", default=[16, 128, 1152])
    own.add_argument("--max-autotune", action="store_true", help="Inductor in that mode too: minutes")
    own = table("balance", 600.0)
    own.add_argument("--rows", type=int, default=1 << 30, help="most rows of a matrix")
    own = table("linear_attention", 600.0)
    own.add_argument("--site", default="", help="a folder with flash-linear-attention")
    own.add_argument("--shape", type=int, nargs=3, action="append", help="B, T, H (default 8 2048 16)")
    own.add_argument("--dtype", default="bfloat16")
    return parser


if __name__ == "__main__":  # before torch is imported, which takes seconds
    make_parser().parse_args()

from benchmarks.jobs import Table, measure, of_now


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
    if getattr(options, "report_only", None):
        command.need_packages(matplotlib="matplotlib", pandas="pandas")
        return render(options.report_only, options.out)
    module, instead = TABLES[options.table]
    command.need_gpu(parser, options.device, instead)
    plan = import_module(module)
    for option, names in (("only", "NAMES"), ("operations", "OPERATIONS")):
        known = getattr(plan, names, ())
        if unknown := {*(getattr(options, option, None) or ())} - {*known}:
            parser.error(f"--{option} has {', '.join(sorted(unknown))}; use some of {', '.join(known)}")
    jobs = plan.waves(options)
    options.out.mkdir(parents=True, exist_ok=True)
    mode = {"mode": "quick" if options.quick else "full"} if options.table == "sinkhorn" else {}
    table = Table(options.out / plan.FILE, {**mode, **of_now()}, plan.FIRST_COLUMNS)
    for row in plan.absent(options) if hasattr(plan, "absent") else ():
        table.add({"section": "left out", **row})
    limit = (85.0 if options.quick else 520.0) if options.limit is None else options.limit
    measure(table, jobs, limit, plan.WORKERS)
    table.write()
    print(f"wrote {table.path}")
    if options.table == "sinkhorn":
        render(table.path, options.out)


if __name__ == "__main__":
    main()
