"""A digest of this package's sources in the key of torch's cache on disk.

That key has the graph that Dynamo made, with the names of operators but not their gradients, so a process
could get the backward of another version of this package.  Dynamo's graphs therefore hold a twin of each
operator, whose last argument is the digest; AOTAutograd replaces the twin by the operator itself.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

NAMESPACE = "helion_sinkhorn_compiled"
ROOMS = "ops", "runtime"
"""Folders of the package that hold the kernels, and what makes code of them."""
_PACKAGE = Path(__file__).resolve().parents[1]


def of_source(name: str, schema: str, operator: Callable[..., Any]) -> Callable[..., Any]:
    """Register helion_sinkhorn_compiled::name, the operator with the digest after its arguments."""
    qualified = f"{NAMESPACE}::{name}"
    arguments, results = schema.split(") -> ", 1)
    torch.library.define(
        qualified, f"{arguments}, str source) -> {results}", tags=torch.Tag.pt2_compliant_tag
    )
    torch.library.impl(qualified, "CompositeImplicitAutograd", lambda *given: operator(*given[:-1]))
    return getattr(getattr(torch.ops, NAMESPACE), name)


@functools.cache
def sources() -> str:
    """A digest of the kernels and of what makes code of them."""
    paths = [path for room in ROOMS for path in sorted((_PACKAGE / room).rglob("*.py"))]
    return hashlib.sha256(b"\0".join([path.read_bytes() for path in paths])).hexdigest()


def source_digest() -> str:
    """The same, shorter, for the key of a compilation."""
    return sources()[:16]


# as in runtime.torch_op: Dynamo takes the result for a constant
source_digest._dynamo_marked_constant = True
