"""The flags of `--op dot_compress`, which tritonbench hands on; they import no torch."""

from tritonbench_ops import flags

SIZES = {"batch": "elements", "m": "rows of x and y", "d": "columns of x", "k": "columns of y"}
"""The flags, which are fields of a workload, and what they count."""
PARSER = flags.parser("dot_compress", SIZES)
PARSER.add_argument("--with-z", action="store_true", help="add z to the intermediate")
ON_A_CPU = ("--batch", "2")
"""Sizes where there is no GPU and no size was named."""
