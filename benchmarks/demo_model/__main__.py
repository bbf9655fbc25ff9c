"""A tiny DeepseekV4 of transformers with and without this package's residual path, compared and trained.

    python -m benchmarks.demo_model [--steps 200]     # make demo WHAT=model; 1 minute on one core
    python -m benchmarks.demo_model --step docs/bench/model_step.csv     # on a GPU

Before training, logits and every gradient are compared, in float32 and in bfloat16.  Then both learn the
transitions of a Markov chain.  Exits with 1 when a comparison fails.  --step only measures a step of a wider
model.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import command


def arguments() -> argparse.Namespace:
    parser = command.parser("demo_model", __doc__)
    parser.add_argument("--steps", type=command.size, default=200, help="of training (default %(default)s)")
    parser.add_argument("--device", help="cuda or cpu (default: cuda where torch sees one)")
    parser.add_argument("--output", default="demo_model.png", help="the picture (default %(default)s)")
    parser.add_argument(
        "--step", type=Path, metavar="CSV", help="only time a step on a GPU, and write it here"
    )
    args = parser.parse_args()
    args.device = command.device_for(parser, "cuda" if args.step else args.device)
    if not args.step:
        command.need_packages(matplotlib="matplotlib")
    command.need_packages(transformers="transformers==5.23.0")
    return args


def main() -> int:
    args = arguments()
    # it imports transformers
    from benchmarks.demo_model import run

    return run.print_costs("cuda", args.step) if args.step else run.run(args)


if __name__ == "__main__":
    sys.exit(main())
