"""Write the numbers of pages from the files they come from: python -m docs.numbers [--check]

docs/numbers.toml lists what stands between `<!-- name -->` and `<!-- /name -->` of a page, from which
file and by which function.  --check writes nothing and exits with 1 where a page says something else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m docs.numbers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="write nothing; the exit status is the verdict")
    parser.add_argument("--pictures", action="store_true", help="draw the pictures of the same files too")
    return parser.parse_args()


if __name__ == "__main__":  # before torch is imported, which takes seconds
    arguments()

try:
    import tomllib

    from benchmarks.residual_path import report as residual_path
    from ci.gate import markdown
    from docs import kernel_times, pictures, tables, whole_calls
    from helion_sinkhorn.lab.tuning.readme import readme
except ModuleNotFoundError as missing:
    if __name__ != "__main__":
        raise
    sys.exit(f"needs {missing.name}: pip install {missing.name}")

ROOT = Path(__file__).resolve().parents[1]
LISTED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
MAKERS = dict(kernel_times=kernel_times, residual_path=residual_path, tables=tables, whole_calls=whole_calls)


@dataclass(frozen=True)
class Generated:
    """A table of a page and the function that makes it; without a mark, a whole page."""

    page: str
    mark: str
    text: Callable[[], str]

    def written(self, page: str) -> str:
        """The page with this part as it has to be."""
        return markdown.replaced(page, self.mark, self.text(), self.page) if self.mark else self.text()


def made(page: str, mark: str, file: str, maker: str, *words: str) -> Generated:
    """A row of numbers.toml; the tables of residual_path.csv are its benchmark's."""
    module, _, name = maker.partition(".")
    given = (ROOT / file, *words) if module == "residual_path" else words
    return Generated(page, mark, partial(getattr(MAKERS[module], name), *given))


GENERATED = (
    *(made(*row) for row in LISTED["generated"]),
    Generated("tuning_cache/README.md", "", partial(readme, ROOT / "tuning_cache")),
)


def pages() -> dict[Path, str]:
    """Every page that has generated parts, as it has to be."""
    texts: dict[Path, str] = {}
    for part in GENERATED:
        path = ROOT / part.page
        texts[path] = part.written(texts.get(path) or path.read_text())
    return texts


def stale() -> list[str]:
    """What is not as it has to be, a line each."""
    return [
        f"{path.relative_to(ROOT)} is not what its files say: make docs-numbers"
        for path, text in pages().items()
        if not path.exists() or path.read_text() != text
    ]


def main() -> int:
    options = arguments()
    if not options.check:
        for path, text in pages().items():
            path.write_text(text)
        if options.pictures:
            tables.report.plots(tables.results(), tables.BENCH)
            pictures.accuracy(tables.artefacts(), ROOT / "docs" / "accuracy.png")
    sentences = stale()
    print(*sentences, sep="\n", end="\n" if sentences else "")
    return bool(sentences)


if __name__ == "__main__":
    sys.exit(main())
