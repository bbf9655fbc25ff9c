"""--op hc_site.  `operator` imports tritonbench: imported only when tritonbench asks for it."""


def __getattr__(name):
    if name != "Operator":
        raise AttributeError(name)
    from .operator import Operator

    return Operator
