"""The flags of `--op sinkhorn`, which tritonbench hands on; they import no torch."""

from tritonbench_ops import flags

FORMS, FIRSTS = ("deepseek", "log"), ("rows", "cols")
PARSER = flags.parser("sinkhorn", {"n": "rows and columns", "n_iters": "T", "batch": "matrices"})
PARSER.add_argument("--form", choices=FORMS, default="deepseek", help="definition (README); %(default)s")
PARSER.add_argument("--first", choices=FIRSTS, default="rows", help="normalised first; %(default)s")
ON_A_CPU = ("--n", "4", "--batch", "4096")
"""Sizes where there is no GPU and no size was named."""
