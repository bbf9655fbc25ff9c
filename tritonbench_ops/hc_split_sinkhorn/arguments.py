"""The flags of `--op hc_split_sinkhorn`, which tritonbench hands on; they import no torch."""

from tritonbench_ops import flags

FIELDS = {"tokens": "batch", "streams": "n", "n_iters": "n_iters"}
"""The flags, and the fields of a workload that they replace."""
PARSER = flags.parser(
    "hc_split_sinkhorn", {"tokens": "rows of mixes", "streams": "n", "n_iters": "of Sinkhorn"}
)
ON_A_CPU = ("--tokens", "1024")
"""Sizes where there is no GPU and no size was named."""
