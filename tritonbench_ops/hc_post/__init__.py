"""--op hc_post; its class, which needs tritonbench, is made when it is requested."""

from tritonbench_ops.register import finds_operator

__getattr__ = finds_operator("hc_post")
