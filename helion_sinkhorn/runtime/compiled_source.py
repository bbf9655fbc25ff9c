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
_PACKAGE = Path(__file__).resolve().parent.parent


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
def _digest() -> str:
    paths = sorted(path for folder in ("ops", "runtime") for path in (_PACKAGE / folder).rglob("*.py"))
    return hashlib.sha256(b"\0".join([path.read_bytes() for path in paths])).hexdigest()[:16]


def source_digest() -> str:
    """A digest of the sources of all operators, made by the first compilation."""
    return _digest()


# as in runtime.tokens: Dynamo takes the result for a constant
source_digest._dynamo_marked_constant = True
