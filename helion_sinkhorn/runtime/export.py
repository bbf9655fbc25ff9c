"""Named tuples in exported programs."""

from __future__ import annotations

from torch.utils import _pytree


def named_for_export(kind: type[tuple]) -> None:
    """Let `torch.export.save` write programs that return this named tuple, under this name."""
    _pytree._register_namedtuple(kind, serialized_type_name=f"{kind.__module__}.{kind.__qualname__}")
