"""Generated code as a device runs it: what is added to it when it is loaded, beside what Helion wrote."""

from __future__ import annotations

import ast

import torch

from helion_sinkhorn.runtime import overlap
from helion_sinkhorn.runtime.kernel import Kernel


def adapted(code: str, kernel: Kernel, device: torch.device) -> str:
    """The code of a kernel with what its traits ask for on this device."""
    options, overlaps = fusion(kernel), "overlaps" in kernel.traits and overlap.has_overlap(device)
    if overlaps:
        options["launch_pdl"] = True
    if not options:
        return code
    module = ast.parse(code)
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_launcher":
            node.keywords = [k for k in node.keywords if k.arg not in options]
            node.keywords += [ast.keyword(name, ast.Constant(value)) for name, value in options.items()]
    if overlaps:
        overlap.wait(module)
    return ast.unparse(ast.fix_missing_locations(module)) + "\n"


def fusion(kernel: Kernel) -> dict[str, bool]:
    """The option of Triton's by which programs with and without a result compute the others alike.

    Of a sum of two products LLVM fuses one or the other, depending on what else a program computes:
    different ones in the gradients of post alone and with the others (hc_post_backward, float32, sm_90).
    """
    return {"enable_fp_fusion": False} if "optional results" in kernel.traits else {}
