"""The command line: configs measured for a device, which config a call gets, and code made beforehand."""

from __future__ import annotations

import logging
import sys

from helion_sinkhorn.arguments import parse, parser


def main(words: list[str] | None = None) -> int:
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    given = parse(words)
    if given.command is None:
        parser().print_help()
        return 0
    from helion_sinkhorn.lab.tuning import commands

    return getattr(commands, given.command)(given)


if __name__ == "__main__":
    sys.exit(main())
