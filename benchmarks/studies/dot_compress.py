"""What the accuracy complaint about dot compress measures: errors against float64, mismatches of all pairs.

x (M, D) and y (M, K) standard normal, the upstream gradient a tenth of that, bfloat16, at the reported
M = 3219, D = 256, K = 64.  A mismatch is |a - b| > 0.2 + 0.01 |b|, the rule of the report, counted per
4,194,304 elements, the size it names.  Prints the tables, and puts that of the errors between the markers of
docs/dev/dot_compress.md.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from helion_sinkhorn import dot_compress, reference
from helion_sinkhorn.lab.dot_compress import budget as testing_dot_compress
from helion_sinkhorn.lab.tuning import markdown
from helion_sinkhorn.lab.workloads import WORKLOADS

try:
    import triton
    import triton.language as tl
except ImportError:  # the modelled part needs none
    triton = None

WORKLOAD = WORKLOADS["dot_reported"]
GPU_BATCH = 64
table = functools.partial(markdown.of_records, rule=" --- ")
"""As docs/dev/dot_compress.md has its tables."""
REPORTED = 1 << 22
"""Elements of which the report counts 37."""
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(n, k) and (k, m) in bfloat16 -> (n, m) in float32."""
Results = dict[str, torch.Tensor]


def mismatched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where the report's rule rejects a for b."""
    return (a.double() - b.double()).abs() > 0.2 + 0.01 * b.double().abs()


def per_reported(bad: torch.Tensor) -> int:
    return round(bad.double().mean().item() * REPORTED)


# ------------------------------------------------------------------------------- dot compress, in steps


def steps(x, y, grad, first: Product, second: Product) -> Results:
    """The listing of the report: every product rounded to bfloat16, the two terms of dx too, then added."""
    b, db = (first(x.mT, t).bfloat16() for t in (y, grad))
    dx = second(grad, b.mT.contiguous()).bfloat16() + second(y, db.mT.contiguous()).bfloat16()
    return {"out": second(x, b).bfloat16(), "dx": dx, "b": b}


def pairs(results: dict[str, Results]) -> str:
    """Mismatches of every result with every other and with the truth."""
    rows = []
    for a, b in itertools.combinations(results, 2):
        one, other = results[a], results[b]
        both = "b" in one and "b" in other
        flips = f"{(one['b'] != other['b']).double().mean().item():.2%}" if both else ""
        row = {"a": a, "b": b, "entries of x'y that differ": flips}
        for name in ("out", "dx"):
            off = (one[name].double() - other[name].double()).abs()
            row[f"{name}: mismatches"] = per_reported(mismatched(one[name], other[name]))
            row[f"{name}: largest"] = f"{off.max().item():.3g}"
        rows.append(row)
    return table(rows)


def errors(results: dict[str, Results], truth: dict[str, testing_dot_compress.Exact]) -> str:
    """Errors against float64, and the share of the budget they take."""
    rows = []
    for who, tensors in results.items():
        row = {"": who}
        for name in ("out", "dx"):
            exact, own = truth[name], tensors[name].cpu()
            off = (own.double() - exact.value).abs()
            row[f"{name}: rms error"] = f"{off.square().mean().sqrt().item():.4g}"
            row[f"{name}: largest"] = f"{off.max().item():.3g}"
            row[f"{name}: of the budget"] = f"{(off / exact.budget).max().item():.2f}"
            outside = mismatched(own, exact.value).double().mean()
            row[f"{name}: outside 0.2 + 1 %"] = f"{outside:.1%}"
        rows.append(row)
    return table(rows)


def in_float32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.float() @ b.float()


def split(product: Product, parts: int) -> Product:
    """The same product of `parts` ranges of k, added up in float32: split-K."""

    def run(a, b):
        edges = [a.size(1) * i // parts // 16 * 16 for i in range(parts)] + [a.size(1)]
        partial = [product(a[:, i:j].contiguous(), b[i:j].contiguous()) for i, j in itertools.pairwise(edges)]
        return functools.reduce(torch.add, partial)

    return run


def permuted(product: Product) -> Product:
    """k in the order in which Triton packs eight of one operand to a lane, for AMD: 0-3, 8-11, 4-7, 12-15."""

    def run(a, b):
        k = torch.arange(a.size(1) // 16 * 16).view(-1, 2, 2, 4).transpose(1, 2).flatten()
        k = torch.cat([k, torch.arange(len(k), a.size(1))])
        return product(a[:, k], b[k])

    return run


def modelled() -> dict[str, Product]:
    """Matrix units as mmasim models them; none for gfx950 (CDNA4) is published."""
    from mmasim.amd.sim import MFMA
    from mmasim.nv_ptx.sim import WGMMA

    def unit(instruction, depth: int) -> Product:
        def run(a, b):
            acc = torch.zeros(a.size(0), b.size(1))
            for k in range(0, a.size(1), depth):
                pad = depth - min(depth, a.size(1) - k)
                slabs = torch.nn.functional.pad(a[:, k : k + depth], (0, pad)), b[k : k + depth]
                acc = instruction(slabs[0], torch.nn.functional.pad(slabs[1], (0, 0, 0, pad)), acc)
            return acc

        return run

    # the arithmetic takes operands of any extent; the instruction names its depth
    cdna3 = unit(MFMA("CDNA3", "f32_32x32x8_bf16").arithmetic_op, 8)
    hopper = unit(WGMMA("Hopper", "m64n64k16.f32.bf16.bf16").arithmetic_op, 16)
    return {
        "float32, PyTorch": in_float32,
        "CDNA3": cdna3,
        "CDNA3, k permuted": permuted(cdna3),
        "CDNA3, split-K 2": split(cdna3, 2),
        "CDNA3, split-K 4": split(cdna3, 4),
        "Hopper": hopper,
        "Hopper, split-K 2": split(hopper, 2),
    }


SHOWN = "float32, PyTorch", "CDNA3", "Hopper"
"""The orders and units of which docs/dev/dot_compress.md has rows."""


def on_a_cpu(seed: int) -> list[str]:
    """Errors and mismatches of the orders and units of `modelled`, one element."""
    inputs = replace(WORKLOAD, batch=1).make_inputs(seed)
    truth = testing_dot_compress.exact(*inputs)
    x, y, _, grad = (None if t is None else t[0] for t in inputs)
    results = {}
    for name, product in modelled().items():
        begin = time.perf_counter()
        results[name] = {k: t.unsqueeze(0) for k, t in steps(x, y, grad, product, in_float32).items()}
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)
    shown = {name: results[name] for name in SHOWN}
    return [errors(shown, truth), errors(results, truth), pairs(results)]


# ---------------------------------------------------------------------------------------- on a GPU

if triton is not None:

    @triton.jit
    def in_order_kernel(
        x, y, b, m, D: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr
    ):
        """b = x'y of one element, its rows in SPLITS ranges, each summed in order, 32 rows at a time."""
        e = tl.program_id(0).to(tl.int64)
        d, k = tl.arange(0, D), tl.arange(0, K)
        chunk = tl.cdiv(tl.cdiv(m, SPLITS), ROWS) * ROWS
        total = tl.zeros((D, K), tl.float32)
        for s in tl.static_range(SPLITS):
            acc = tl.zeros((D, K), tl.float32)
            for begin in range(s * chunk, min(m, (s + 1) * chunk), ROWS):
                r = begin + tl.arange(0, ROWS)
                xs = tl.load(x + e * m * D + r[:, None] * D + d[None, :], r[:, None] < m, 0.0)
                ys = tl.load(y + e * m * K + r[:, None] * K + k[None, :], r[:, None] < m, 0.0)
                acc = tl.dot(xs.T, ys, acc)
            total = total + acc
        tl.store(b + e * D * K + d[:, None] * K + k[None, :], total.to(tl.bfloat16))


def in_order(x: torch.Tensor, y: torch.Tensor, splits: int) -> torch.Tensor:
    batch, m, d = x.shape
    b = x.new_empty(batch, d, y.size(2))
    in_order_kernel[(batch,)](x, y, b, m, d, y.size(2), 32, splits, num_warps=8)
    return b


def differentiated(f, x, y, grad) -> Results:
    leaves = [t.detach().requires_grad_() for t in (x, y)]
    out = f(*leaves)
    dx, _ = torch.autograd.grad(out, leaves, grad)
    return {"out": out.detach(), "dx": dx}


def on_a_gpu(seed: int) -> list[str]:
    """Errors and mismatches of eager PyTorch, Inductor and the kernels; x'y in order and split, bitwise."""
    inputs = replace(WORKLOAD, batch=GPU_BATCH).make_inputs(seed)
    truth = testing_dot_compress.exact(*(None if t is None else t[:4] for t in inputs))
    x, y, _, grad = (None if t is None else t.cuda() for t in inputs)
    callers = {
        "eager": reference.dot_compress,
        "Inductor": torch.compile(reference.dot_compress),
        "Helion": dot_compress,
        "Helion, precise": functools.partial(dot_compress, precise_intermediate=True),
    }
    results = {name: differentiated(f, x, y, grad) for name, f in callers.items()}
    b = {f"K loop, split {s}": in_order(x, y, s) for s in (1, 2, 4)}
    b = {"torch.bmm": torch.bmm(x.mT, y), **b}
    b["Helion"] = torch.ops.helion_sinkhorn.dot_compress(x, y, None, 1, "helion")[1][:, 0]
    flips = [
        {"x'y in bfloat16": name, f"of {t.numel():,} differ from torch.bmm": int((t != b["torch.bmm"]).sum())}
        for name, t in b.items()
    ]
    first = {name: {k: t[:4] for k, t in tensors.items()} for name, tensors in results.items()}
    said = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}"
    return [f"{said}\n\n{errors(first, truth)}", pairs(results), table(flips)]


def main(options: argparse.Namespace) -> None:
    part = "gpu" if options.gpu else "cpu"
    text, *others = on_a_gpu(options.seed) if options.gpu else on_a_cpu(options.seed)
    print(text, *others, sep="\n\n")
    begin, end = f"<!-- {part}: make study WHAT=dot_compress -->", f"<!-- end of {part} -->"
    page = options.out.read_text() if options.out.exists() else f"{begin}\n{end}\n"
    before, rest = page.split(begin)
    options.out.write_text(f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}")
