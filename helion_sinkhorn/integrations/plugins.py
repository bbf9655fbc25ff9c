"""The plug-ins that inference servers load; one that is off only imports this package."""

from __future__ import annotations

import os

SWITCH = "HELION_SINKHORN_SERVE"
"""The environment variable: unset, empty or "off" does nothing; otherwise as `register` takes it."""


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
