"""The limits of the chunked method of recurrent linear attention."""

from __future__ import annotations

LARGEST_DK = 128
"""The largest Dk, since a program holds all channels of a chunk."""


def why_not_chunked(gv: bool, packed: bool, dk: int) -> str:
    """Why the chunked method does not take a call with these arguments; empty if it does."""
    if gv:
        return "a decay of the values, gv, is no factor of the scores within a chunk"
    if packed:
        return "packed sequences, cu_seqlens, end within chunks"
    return f"chunks take Dk up to {LARGEST_DK}, this is {dk}" if dk > LARGEST_DK else ""
