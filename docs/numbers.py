"""Write the numbers of README and docs from the files they come from: python -m docs.numbers [--check]

GENERATED lists what is written between `<!-- name -->` and `<!-- /name -->` of a page, and from which file.
STATED lists numbers that no file in the repository holds: the page says with which commit they were written.
docs/numbers.md is both lists.  --check writes nothing and exits with 1 where a page says something else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m docs.numbers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="write nothing; the exit status is the verdict")
    parser.add_argument("--pictures", action="store_true", help="draw the pictures of the same files too")
    return parser.parse_args()


if __name__ == "__main__":
    # what follows imports torch, which takes seconds
    arguments()

try:
    from ci.gate import markdown
    from docs import kernel_times, tables, whole_calls
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    sys.exit(f"needs {missing.name}: pip install {missing.name}")

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Generated:
    """A table of a page and the file that it is made of; without a mark, a whole page."""

    page: str
    mark: str
    artefact: str
    text: Callable[[], str]

    def written(self, page: str) -> str:
        """The page with this part as it has to be."""
        return markdown.replaced(page, self.mark, self.text(), self.page) if self.mark else self.text()


@dataclass(frozen=True)
class Stated:
    """Numbers of a page without a committed file."""

    page: str
    what: str
    commit: str
    """With which the page got them."""
    date: str
    command: str

    @property
    def sentence(self) -> str:
        """What the page says of their age."""
        return (
            f"Numbers of {self.date}, written with commit {self.commit}; "
            "the repository keeps no raw data of them."
        )


BENCH, ACCURACY, CACHE = "docs/bench/bench.csv", "docs/accuracy/*.json", "tuning_cache/"
PATH = "docs/bench/residual_path.csv"
GENERATED = (
    Generated("README.md", "peers", BENCH, tables.peers),
    Generated("docs/accuracy.md", "judged", ACCURACY, tables.judged),
    Generated("docs/accuracy.md", "inductor", "docs/accuracy/h200.json", tables.inductor),
    Generated("docs/accuracy_devices.md", "devices", ACCURACY, tables.devices),
    Generated("docs/performance.md", "tuned", CACHE, kernel_times.tuned),
    Generated("docs/performance.md", "headline", BENCH, tables.headline),
    Generated("docs/performance.md", "sizes", BENCH, tables.sizes),
    Generated("docs/performance.md", "slower", BENCH, tables.unfavourable_cells),
    Generated("docs/performance.md", "better", PATH, tables.unfavourable_path),
    Generated("docs/performance.md", "targets", BENCH, tables.targets),
    Generated("docs/performance.md", "versions", CACHE, kernel_times.versions),
    *(
        Generated("docs/performance.md", mark, f"docs/bench/{file}.csv", partial(of, file))
        for mark, file, of in (
            ("triton", "triton", whole_calls.triton), ("triton h100", "triton_h100", whole_calls.triton),
            ("host", "triton", whole_calls.host), ("host h100", "triton_h100", whole_calls.host),
        )
    ),
    Generated("docs/first_call.md", "times", "docs/bench/first_call.csv", whole_calls.first_call),
    Generated("docs/kernel_times.md", "residual", CACHE, kernel_times.residual),
    Generated("docs/mhc.md", "recompute", "docs/bench/recompute.csv", whole_calls.recomputed),
    Generated("docs/backward.md", "gradients", CACHE, kernel_times.gradients),
    Generated("docs/dot_compress.md", "kernels", CACHE, partial(
        kernel_times.of_kernels, ("dot_compress_product", "dot_compress_apply", "dot_compress_expand"),
        {"dtype": "dtype", "parts": "parts", "batch": "B"},
    )),
    Generated("docs/dot_compress.md", "calls", "docs/bench/dot_compress.csv", whole_calls.dot_compress),
    Generated(
        "docs/linear_attention.md", "calls", "docs/bench/linear_attention.csv", whole_calls.linear_attention
    ),
    Generated("docs/linear_attention.md", "kernels", CACHE, partial(
        kernel_times.of_kernels, ("linear_attention_walk", "linear_attention_gates"),
        {"result": "result", "dtype": "dtype", "gates": "gates"},
    )),
    Generated("docs/linear_attention_chunked.md", "kernels", CACHE, partial(
        kernel_times.of_kernels,
        tuple(f"linear_attention_chunk_{part}" for part in ("scores", "walk", "gradients")),
        {"dtype": "dtype", "gates": "gates"},
    )),
    Generated("README.md", "site", PATH, tables.site),
    *(
        Generated(page, "step", "docs/bench/model_step.csv", whole_calls.model_step)
        for page in ("README.md", "docs/mhc.md")
    ),
    *(
        Generated(f"docs/{page}.md", "beside", PATH, partial(tables.beside, operation))
        for page, operation in (
            ("mhc", "site"), ("hc_split_sinkhorn", "coefficients"), ("hc_pre", "hc_pre"),
            ("hc_post", "hc_post"), ("hc_mixes", "hc_mixes"),
        )
    ),
    Generated("docs/hc_site.md", "parts", PATH, tables.whole_and_parts),
    Generated("docs/hc_site.md", "serving", PATH, tables.serving),
    Generated("docs/tuning.md", "entries", CACHE, tables.entries),
    Generated("docs/emulation.md", "emulated", "ci/emulated.toml", tables.emulated),
    Generated("docs/support.md", "support", f"{CACHE}, {ACCURACY}, ci/emulated.toml", tables.support),
    Generated("docs/bench/report.md", "", BENCH, tables.report_page),
)  # fmt: skip
SPEED = "python -m benchmarks"
TRIED = "times on an H200 of experiments, with the kernels of that day"
STATED = (
    Stated("docs/attack.md", "bugs and mutants found", "2bad780", "2026-11-27", "make attack"),
    Stated("docs/backward.md", "times of solvers on an H200", "a6ffad1", "2026-11-21",
           f"{SPEED}.sinkhorn.implicit_speed"),
    Stated("docs/dot_compress.md", "errors on an H200", "071cafa", "2026-11-21",
           f"make study-dot-compress ARGS=--gpu; {SPEED}.dot_compress.speed"),
    Stated("docs/linear_attention.md", "times and errors in the text, on an H200", "603d2a9", "2026-11-22",
           f"{SPEED}.linear_attention.speed"),
    Stated("docs/machine_code.md", "instructions, compiled", "e181171", "2026-11-24",
           f"{SPEED}.sinkhorn.machine_code"),
    Stated("docs/mhc.md", "errors, memory and the comparison with transformers, on a CPU", "ec4f489",
           "2026-11-22", "make demo-model"),
    Stated("docs/tried.md", f"sinkhorn: {TRIED}", "436da0f", "2026-11-22", "make tune, make bench"),
    Stated("docs/tried.md", "sinkhorn: instructions of sums in order, compiled", "7c65311", "2026-11-24",
           "helion_sinkhorn.machine.compiler.compile_for"),
    Stated("docs/tried.md", "sinkhorn: conjugate gradients, compiled", "c606809", "2026-11-24",
           "helion_sinkhorn.machine.compiler.compile_for"),
    Stated("docs/tried.md", f"hc_mixes: {TRIED}", "5143613", "2026-11-23", "make tune"),
    Stated("docs/tried.md", f"hc_split_sinkhorn: {TRIED}", "ec4f489", "2026-11-22", "make tune"),
    Stated("docs/tried.md", f"hc_site: {TRIED}", "6015170", "2026-11-23", "make tune"),
    Stated("docs/tried.md", f"linear attention: {TRIED}", "3cac55d", "2026-11-21",
           f"{SPEED}.linear_attention.speed"),
    Stated("docs/tried.md", f"dot_compress: {TRIED}", "0c7780f", "2026-11-21",
           f"{SPEED}.dot_compress.speed"),
    Stated("docs/tried.md", f"dot_compress, small batches: {TRIED}", "4773faf", "2026-11-21",
           f"{SPEED}.dot_compress.speed"),
)  # fmt: skip
REMADE = {
    "docs/faults.md": "`make fault-tables`",
    "docs/backward.md": "`make study-backward`",
    "docs/dot_compress.md": "`make study-dot-compress`",
    "docs/emulation.md": "`make mutants ARGS=--write`",
    "docs/hc_mixes.md": "`python -m benchmarks.hc_mixes.study_precision`",
    "docs/linear_attention.md": "`python -m benchmarks.linear_attention.gates`",
    "tuning_cache/README.md": "`make tuning-readme`",
}
"""Other tables that a command makes on a CPU from the sources alone."""


MENTIONED = {
    "docs/amd.md": "no times; what has been emulated is in docs/emulation.md",
    "docs/first_call.md": "seconds of a first call with the programs of a wheel, with its run",
    "docs/helion.md": "single times, each with the versions in its sentence; they are not kept anywhere else",
    "docs/index.md": "the output of an example on a CPU",
    "docs/tritonbench.md": "shares of error budgets on an H200; no times",
    "docs/math.md": "errors beside their derivation, from docs/accuracy/ and from studies on a CPU",
}
"""Pages with single numbers in their text."""
LISTING = """\
# Where numbers come from

`make docs-numbers` writes this page and every table of the first list. A test fails where a page and its
file disagree.

## From a committed file

{generated}

## Made again on a CPU

These tables need no data: a command computes them from the sources.

{remade}

## Without a committed file

These numbers were printed by a run whose raw data was not kept, and their pages say so. The commit is the
one that wrote them down; where kernels have changed since, only a new run says what they are now.

{stated}

## In the text of a page

{mentioned}
"""


def listing() -> str:
    """docs/numbers.md."""
    generated = [
        {"page": g.page, "table": g.mark or "the page", "file": f"`{g.artefact}`"} for g in GENERATED
    ]
    remade = [{"page": page, "command": command} for page, command in REMADE.items()]
    stated = [
        {"page": s.page, "numbers": s.what, "commit": s.commit, "date": s.date, "command": f"`{s.command}`"}
        for s in STATED
    ]
    mentioned = [{"page": page, "numbers": what} for page, what in MENTIONED.items()]
    parts = {"generated": generated, "remade": remade, "stated": stated, "mentioned": mentioned}
    return LISTING.format(**{name: markdown.table(rows) for name, rows in parts.items()})


def pages() -> dict[Path, str]:
    """Every page that has generated parts, as it has to be."""
    found: dict[Path, str] = {ROOT / "docs" / "numbers.md": listing()}
    for part in GENERATED:
        path = ROOT / part.page
        found[path] = part.written(found.get(path) or path.read_text())
    return found


def stale() -> list[str]:
    """What is not as it has to be, a line each."""
    wrong = [
        f"{path.relative_to(ROOT)} is not what its files say: make docs-numbers"
        for path, text in pages().items()
        if not path.exists() or path.read_text() != text
    ]
    wrong += [
        f"{s.page} does not say: {s.sentence}"
        for s in STATED
        if s.sentence not in " ".join((ROOT / s.page).read_text().split())
    ]
    return wrong


def main() -> int:
    options = arguments()
    if not options.check:
        for path, text in pages().items():
            path.write_text(text)
        if options.pictures:
            tables.pictures()
    found = stale()
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
