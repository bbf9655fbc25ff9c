"""Time forward and exact backward on a GPU against a copy of the same bytes, eager PyTorch and torch.compile.

    python benchmarks/speed.py --out speed/

Every figure is a median with its 20 % and 80 % quantiles, L2 cleared before each run, and a ratio
to the copy floor of the same run: y.copy_(x) for forward, torch.add(x, dy, out=dx) for backward.
Writes speed.csv and speed.md with versions and clocks.  Configs are those `sinkhorn` takes by itself.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

import helion
import torch
import triton
from triton.testing import do_bench, do_bench_cudagraph

from helion_sinkhorn import plan, reference, sinkhorn

T = 20
SHAPES = [(4, 1 << 20), (8, 1 << 18), (16, 1 << 16), (32, 1 << 14), (64, 1 << 12), (128, 1 << 10)]
SMALL_BATCHES = (128, 1024, 8192)
QUANTILES = [0.5, 0.2, 0.8]
Row = dict[str, object]


def micros(run: Callable[[], object]) -> tuple[float, float, float]:
    """Median, 20 % and 80 % quantile in microseconds."""
    run()
    return tuple(1e3 * t for t in do_bench(run, warmup=10, rep=60, quantiles=QUANTILES))


def row(what: str, n: int, batch: int, dtype: str, times: tuple[float, ...], floor: float) -> Row:
    median, low, high = times
    return {
        "what": what, "n": n, "batch": batch, "dtype": dtype, "us": round(median, 1), "us_20": round(low, 1),
        "us_80": round(high, 1), "floor_us": round(floor, 1), "x_floor": round(median / floor, 2),
    }  # fmt: skip


def gradient(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, dy: torch.Tensor):
    """A closure that runs the backward pass of f alone."""
    leaf = x.detach().clone().requires_grad_()
    y = f(leaf)
    return lambda: torch.autograd.grad(y, leaf, dy, retain_graph=True)


def large(forms: list[str], compiled: bool) -> list[Row]:
    """Throughput where the launch is hidden."""
    return [
        r
        for n, batch in SHAPES
        for dtype in (torch.float32, torch.bfloat16)
        if dtype == torch.float32 or n <= 8
        for r in one_shape(n, batch, dtype, forms, compiled and n <= 8)
    ]


def one_shape(n: int, batch: int, dtype: torch.dtype, forms: list[str], compiled: bool) -> list[Row]:
    x = torch.randn(batch, n, n, device="cuda", dtype=dtype)
    dy, out = torch.randn_like(x), torch.empty_like(x)
    name = str(dtype)[6:]
    copy, add = micros(lambda: out.copy_(x)), micros(lambda: torch.add(x, dy, out=out))
    rows = [row("copy", n, batch, name, copy, copy[0]), row("add", n, batch, name, add, add[0])]
    functions = {f"helion_sinkhorn {form}": partial(sinkhorn, n_iters=T, form=form) for form in forms}
    if dtype == torch.float32 and n <= 8:
        functions["eager"] = partial(reference.sinkhorn, n_iters=T)
        if compiled:
            functions["torch.compile"] = torch.compile(functions["eager"], dynamic=False)
    for what, f in functions.items():
        with torch.no_grad():
            rows.append(row(f"{what} forward", n, batch, name, micros(partial(f, x)), copy[0]))
        rows.append(row(f"{what} backward", n, batch, name, micros(gradient(f, x, dy)), add[0]))
    return rows


def small() -> list[Row]:
    """One call of a CUDA graph, where the launch itself is what is left."""
    rows = []
    for batch in SMALL_BATCHES:
        x = torch.randn(batch, 4, 4, device="cuda")
        dy, out = torch.randn_like(x), torch.empty_like(x)
        adjoint = torch.ops.helion_sinkhorn.sinkhorn_backward
        for what, run in (
            ("copy", partial(out.copy_, x)),
            ("helion_sinkhorn deepseek forward", partial(sinkhorn, x, T)),
            (
                "helion_sinkhorn deepseek backward",
                partial(adjoint, dy, x, T, 1e-6, "deepseek", "rows", "helion"),
            ),
        ):
            run()
            graph = round(1e3 * do_bench_cudagraph(run, rep=20), 2)
            rows.append({"what": what, "n": 4, "batch": batch, "graph_us": graph})
    return rows


def host(calls: int = 2000) -> list[Row]:
    """Host microseconds per eager call at 128 matrices, beside x * 2."""
    x = torch.randn(128, 4, 4, device="cuda")
    leaf, dy = x.clone().requires_grad_(), torch.randn_like(x)
    y = sinkhorn(leaf, T)
    cases = {
        "x * 2": lambda: x * 2,
        "sinkhorn without gradient": lambda: sinkhorn(x, T),
        "torch.ops.helion_sinkhorn.sinkhorn": lambda: torch.ops.helion_sinkhorn.sinkhorn(
            x, T, 1e-6, "deepseek", "rows", "helion", torch.float32
        ),
        "sinkhorn with gradient": lambda: sinkhorn(leaf, T),
        "its backward": lambda: torch.autograd.grad(y, leaf, dy, retain_graph=True),
    }
    rows = []
    for what, run in cases.items():
        best = []
        for _ in range(5):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls // 5):
                run()
            best.append((time.perf_counter() - start) / (calls // 5) * 1e6)
            torch.cuda.synchronize()
        rows.append({"what": what, "host_us": round(sorted(best)[2], 1)})
    return rows


def memory(n: int = 4, batch: int = 1 << 20) -> list[Row]:
    """Bytes a matrix that stay allocated between forward and backward, and scratch inside backward."""
    x = torch.randn(batch, n, n, device="cuda").requires_grad_()
    dy = torch.randn_like(x)
    sinkhorn(x, T)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = sinkhorn(x, T)
    kept = torch.cuda.memory_allocated() - before - y.numel() * y.element_size()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    (dx,) = torch.autograd.grad(y, x, dy)
    scratch = torch.cuda.max_memory_allocated() - start - dx.numel() * dx.element_size()
    logits = x.numel() * x.element_size()
    return [{"what": "kept for backward, bytes a matrix (logits included)", "bytes": (logits + kept) / batch},
            {"what": "scratch in backward, bytes a matrix", "bytes": scratch / batch}]  # fmt: skip


FIRST_CALLS = """
import time, torch
from helion_sinkhorn import sinkhorn
x = torch.randn(8192, 4, 4, device="cuda", requires_grad=True)
torch.cuda.synchronize()
start = time.perf_counter(); import helion, helion_sinkhorn.kernels.launch; print(time.perf_counter() - start)
for run in (lambda: sinkhorn(x, 20), lambda: sinkhorn(x, 20).backward(torch.randn_like(x))):
    start = time.perf_counter(); run(); torch.cuda.synchronize(); print(time.perf_counter() - start)
"""


def first_calls() -> list[Row]:
    """Seconds of the first forward and of the first backward in a fresh process."""
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "TRITON_CACHE_DIR": cache, "TORCHINDUCTOR_CACHE_DIR": cache}
        for state in ("empty compile cache", "warm compile cache"):
            out = subprocess.run(
                [sys.executable, "-c", FIRST_CALLS], env=env, capture_output=True, text=True, check=True
            )
            seconds = [round(float(s), 2) for s in out.stdout.split()]
            rows.append(
                {
                    "what": state,
                    **dict(zip(("import_helion_s", "forward_s", "backward_s"), seconds, strict=True)),
                }
            )
    return rows


def conditions() -> str:
    smi = "--query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu"
    gpu = subprocess.run(["nvidia-smi", smi, "--format=csv,noheader"], capture_output=True, text=True).stdout
    versions = ", ".join(f"{p.__name__} {version(p.__name__)}" for p in (torch, triton, helion))
    return f"{gpu.strip() or torch.cuda.get_device_name()}; {versions}, Python {sys.version.split()[0]}"


def table(rows: list[Row]) -> str:
    names = list(dict.fromkeys(key for r in rows for key in r))
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join(lines + ["| " + " | ".join(str(r.get(k, "")) for k in names) + " |" for r in rows])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("speed"), help="folder for speed.csv and speed.md")
    parser.add_argument("--forms", nargs="+", default=["deepseek", "log"], choices=["deepseek", "log"])
    parser.add_argument(
        "--no-compile", action="store_true", help="leave torch.compile out (minutes to compile)"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark times kernels on a GPU, and torch sees none; `make demo` runs on a CPU")
    options.out.mkdir(parents=True, exist_ok=True)
    before = conditions()
    sections = {
        "Large batches": large(options.forms, not options.no_compile),
        "CUDA graph": small(),
        "Host time": host(),
        "Memory": memory(),
        "First call": first_calls(),
    }
    text = [f"Before: {before}", f"After: {conditions()}", ""]
    text += [str(plan(torch.empty(1 << 20, 4, 4, device="cuda"), T)), ""]
    for title, rows in sections.items():
        text += [f"## {title}", "", table(rows), ""]
    (options.out / "speed.md").write_text("\n".join(text))
    with (options.out / "speed.csv").open("w", newline="") as file:
        everything = [{"section": title, **r} for title, rows in sections.items() for r in rows]
        writer = csv.DictWriter(file, list(dict.fromkeys(key for r in everything for key in r)))
        writer.writeheader()
        writer.writerows(everything)
    print("\n".join(text))


if __name__ == "__main__":
    main()
