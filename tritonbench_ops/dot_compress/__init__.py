"""--op dot_compress.  `operator` imports tritonbench, so it is imported only when tritonbench asks for it."""


def __getattr__(name):
    if name != "Operator":
        raise AttributeError(name)
    from .operator import Operator

    return Operator
