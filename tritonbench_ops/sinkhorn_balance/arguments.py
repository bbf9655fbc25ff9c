"""The flags of `--op sinkhorn_balance`, which tritonbench hands on; they import no torch."""

from tritonbench_ops import flags

FIELDS = {"rows": "batch", "columns": "n"}
"""The flags, and the fields of a workload that they replace."""
PARSER = flags.parser("sinkhorn_balance", {"rows": "rows of a matrix", "columns": "columns"})
ON_A_CPU = ("--rows", "256", "--columns", "128")
"""Sizes where there is no GPU and no size was named."""
