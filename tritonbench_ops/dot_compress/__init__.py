"""--op dot_compress.  `operator` imports tritonbench: only when its class is requested."""

from tritonbench_ops.register import finds_operator

__getattr__ = finds_operator("dot_compress")
