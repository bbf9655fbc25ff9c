"""What inference servers load as their plug-in: one that is off costs them the import of this package."""

from __future__ import annotations

import os

SWITCH = "HELION_SINKHORN_SERVE"
"""Unset, empty or "off": nothing is done; "on", or the tokens that a call has at least."""


def is_on() -> bool:
    return os.environ.get(SWITCH, "") not in ("", "off")


def vllm() -> None:
    """The entry point of vLLM, in the group vllm.general_plugins."""
    if is_on():
        from helion_sinkhorn.integrations.vllm import register

        register(os.environ[SWITCH])


def sglang() -> None:
    """The entry point of SGLang, in the group sglang.srt.plugins."""
    if is_on():
        from helion_sinkhorn.integrations.sglang import register

        register(os.environ[SWITCH])
