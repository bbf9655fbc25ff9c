"""Remake what pages have of a study: tables, and a picture.

    python -m benchmarks.study backward               # docs/sinkhorn.md, docs/backward.png; 40 s on one core
    python -m benchmarks.study dot_compress [--gpu]   # docs/dev/dot_compress.md; some minutes
    python -m benchmarks.study hc_mixes               # prints the tables of docs/mhc.md; a minute
    python -m benchmarks.study linear_attention_gates [--device cuda]   # docs/dev/linear_attention.md; 30 s
    python -m benchmarks.study large --device cuda   # prints the numbers of docs/large.md; 20 s
    python -m benchmarks.study recompute --write docs/bench/recompute.csv   # 40 s
    python -m benchmarks.study serving --write docs/bench/serving.csv   # 3 minutes on a GPU
    python -m benchmarks.study first_call --write docs/bench/first_call.csv   # 90 s on a GPU

On a CPU, but for what says otherwise.  Each is a module of benchmarks/studies/, which says what it measures.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from benchmarks import command

DOCS = Path(__file__).parents[1] / "docs"
NEEDS = {"backward": {"matplotlib": "matplotlib"}, "dot_compress": {"mmasim": "mmasim"}}
"""Packages of a study that runs on a CPU."""


def make_parser() -> argparse.ArgumentParser:
    parser = command.parser("study", __doc__)
    studies = parser.add_subparsers(dest="study", required=True, metavar="STUDY")
    own = studies.add_parser("backward")
    own.add_argument("--docs", type=Path, default=DOCS, help="folder of sinkhorn.md and backward.png")
    own = studies.add_parser("dot_compress")
    own.add_argument("--gpu", action="store_true", help="the part measured on a GPU")
    own.add_argument("--seed", type=int, default=0)
    own.add_argument(
        "--out", type=Path, default=DOCS / "dev" / "dot_compress.md", help="the file with the markers"
    )
    studies.add_parser("hc_mixes")
    own = studies.add_parser("linear_attention_gates")
    own.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    own.add_argument("--gates", nargs="+", help="all on a CPU, gk on a GPU, where others take kernels anew")
    own = studies.add_parser("large")
    own.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    own = studies.add_parser("recompute")
    own.add_argument("--updates", type=int, default=80)
    own.add_argument("--tokens", type=int, default=1024)
    own.add_argument("--hidden", type=int, default=128)
    own.add_argument("--every", type=int, nargs="+", default=[1, 2, 4, 8, 16, 40])
    own.add_argument("--write", type=Path, metavar="FILE", help="as CSV")
    own = studies.add_parser("first_call")
    own.add_argument("--sizes", type=int, nargs="+", default=[4], help="n of the n x n matrices")
    own.add_argument("--repeats", type=int, default=3, help="processes of which medians are taken")
    own.add_argument("--write", type=Path, metavar="FILE", help="as CSV, in place of rows of the same stack")
    own = studies.add_parser("serving")
    own.add_argument("--hidden", type=command.size, nargs="+", default=[4096, 5120, 7168])
    own.add_argument("--peer", choices=("vllm", "sglang"), help="a server's own kernels too, if installed")
    own.add_argument("--tokens", type=command.size, nargs="+",
                     default=[1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 8192])  # fmt: skip
    own.add_argument("--schemes", nargs="+", choices=("V4.1", "V4", "pre", "post"), default=["V4.1", "V4"])
    own.add_argument("--profile", type=command.size, nargs="+", default=[1, 128], help="tokens of launches")
    own.add_argument("--write", type=Path, metavar="FILE", help="as CSV")
    return parser


def main() -> None:
    parser = make_parser()
    options = parser.parse_args()
    gpu = getattr(options, "gpu", options.study == "serving") or getattr(options, "device", "cpu") == "cuda"
    instead = "" if options.study == "serving" else "without that option it runs on a CPU"
    command.need_gpu(parser, "cuda" if gpu else "cpu", instead)
    if not gpu:
        command.need_packages(**NEEDS.get(options.study, {}))
    import_module(f"benchmarks.studies.{options.study}").main(options)


if __name__ == "__main__":
    main()
