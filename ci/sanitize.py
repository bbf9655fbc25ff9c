"""Run the kernels under compute-sanitizer: python -m ci.sanitize [--out FOLDER] [--tools memcheck ...]

memcheck finds accesses out of bounds, initcheck reads of memory never written, racecheck unordered accesses
to shared memory.  Every kernel of some workloads runs on one, three and 67 matrices, each workload in a
process of its own.  The command needs an NVIDIA GPU and compute-sanitizer, which comes with the CUDA toolkit.
It writes sanitize.md and each tool's output, and exits with 1 if a tool finds something and 2 if it cannot
run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def make_parser(tools=None) -> argparse.ArgumentParser:
    """The command line; names and defaults that need torch are passed in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("accuracy"), help="folder of the table and the outputs"
    )
    parser.add_argument("--tools", nargs="+", choices=tools, default=tools)
    parser.add_argument("--seconds", type=float, default=240, help="most for a workload under a tool")
    parser.add_argument("--jobs", type=int, default=min(13, os.cpu_count() or 1), help="processes")
    parser.add_argument("--launch", metavar="WORKLOAD", help="only launch its kernels, unchecked")
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # the next lines import torch, which takes seconds; --help then has all names
    make_parser().parse_args()

from ci.gate import markdown as report

TOOLS = ("memcheck", "initcheck", "racecheck")
WORKLOADS = (
    "mhc_fp32", "mhc_bf16", "log_4", "tail_5x3", "wide_4x8", "masked_8", "lane_32", "matching_64",
    "implicit_mhc", "implicit_bf16", "implicit_tail_5x3", "implicit_wide_4x8", "implicit_64",
    "attention_every_gate", "attention_packed", "attention_chunks", "attention_retention",
    "dot_tail", "dot_fp32", "balance_two_rows", "balance_step_sinkgd", "hc_model", "hc_three_streams",
    "hc_partials", "hc_partials_padded", "mixes_odd", "mixes_odd_fp32", "hc_pre_tokens",
    "hc_pre_odd", "hc_pre_normed_odd", "hc_post_bias", "hc_post_five_streams", "hc_site_odd",
    "hc_site_eight_streams", "large_columns_first", "large_deepseek", "large_wide",
    "quantize_mx", "quantize_fp32",
)  # fmt: skip
"""Packed, padded and rectangular matrices, restarts, sums between warps through shared memory; linear
attention by every kernel: sides that are padded, packed sequences, a chunk cut short at either end; dot
compress by its three, padded and in float32."""
BATCHES = (1, 3, 67)
STEPS = 1 << 12
"""Entries times iterations drawn of a workload; they are repeated to a batch."""
FOUND = 86
"""The exit status of compute-sanitizer if it finds something; no program here uses it."""
PROGRAM = (sys.executable, "-m", "ci.sanitize")
"""The command that runs `launch` in a process of its own."""


def launch(name: str) -> None:
    """Every kernel and config of a workload on a few matrices."""
    import torch

    from ci import accuracy
    from ci.operators import operator_of
    from helion_sinkhorn.lab import workloads

    launches = 0
    workload = workloads.WORKLOADS[name]
    operator = operator_of(workload)
    for batch in BATCHES:
        inputs = [accuracy.filled(t, batch).cuda() for t in operator.inputs(workload, STEPS)]
        for candidate in operator.candidates(workload, *inputs):
            candidate.run(*inputs)
            launches += 1
    torch.cuda.synchronize()
    print(f"{launches} launches")


def run(name: str, seconds: float, prefix: Sequence[str] = ()) -> tuple[int, str]:
    """`launch` in a process: its exit status (-1 if it did not end in time) and its output."""
    # each tensor has a block of its own, because a shared one would hide accesses beyond a tensor
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = [*prefix, *PROGRAM, "--launch", name]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return -1, ""
    return done.returncode, done.stdout + done.stderr


def check(tool: str, sanitizer: str, out: Path, seconds: float, jobs: int) -> dict[str, object]:
    """Run every workload under one tool; a row of the table."""

    def under_tool(name: str) -> tuple[int, str]:
        log = out / f"{tool}.{name}.txt"
        options = ["--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "50"]
        status, text = run(name, seconds, [sanitizer, *options, "--log-file", str(log)])
        (out / f"{tool}.{name}.out.txt").write_text(text)
        return status, text

    start = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        done = list(pool.map(under_tool, WORKLOADS))
    statuses = [status for status, _ in done]
    # findings come first, then tools that did not run
    status = FOUND if FOUND in statuses else next((s for s in statuses if s), 0)
    verdicts = {0: "nothing found", FOUND: "FOUND SOMETHING", -1: f"not finished in {seconds:.0f} s"}
    said = [line for _, text in done for line in text.splitlines() if line.endswith(" launches")]
    return {
        "tool": tool, "verdict": verdicts.get(status, f"did not run: exit status {status}"), "status": status,
        "launches": sum(int(line.split()[0]) for line in said), "seconds": f"{time.monotonic() - start:.0f}",
    }  # fmt: skip


def main() -> int:
    options = make_parser(TOOLS).parse_args()
    if options.launch:
        launch(options.launch)
        return 0
    sanitizer = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer"
    )
    if sanitizer is None:
        print("compute-sanitizer is not here: install the CUDA toolkit, or put it on PATH", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    # first without a tool, so that everything is compiled
    with ThreadPoolExecutor(options.jobs) as pool:
        bare = dict(zip(WORKLOADS, pool.map(lambda name: run(name, options.seconds), WORKLOADS), strict=True))
    for name, (status, text) in bare.items():
        if status:
            print(f"{text}{name} does not run even without a tool: exit status {status}", file=sys.stderr)
            return 2
    rows = [check(tool, sanitizer, options.out, options.seconds, options.jobs) for tool in options.tools]
    table = report.table([{k: v for k, v in row.items() if k != "status"} for row in rows])
    (options.out / "sanitize.md").write_text(table + "\n")
    print(table)
    statuses = {row["status"] for row in rows}
    return 1 if FOUND in statuses else 2 if statuses - {0} else 0


if __name__ == "__main__":
    sys.exit(main())
