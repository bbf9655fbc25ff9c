"""The flags of `--op hc_post`, which tritonbench hands on; they import no torch."""

from tritonbench_ops import flags

FIELDS = {"tokens": "batch", "streams": "n", "hidden": "c"}
"""The flags, and the fields of a workload that they replace."""
PARSER = flags.parser("hc_post", {"tokens": "T", "streams": "n", "hidden": "C"})
ON_A_CPU = ("--tokens", "64", "--hidden", "1024")
"""Sizes where there is no GPU and no size was named."""
