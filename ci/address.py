"""Write the address of the repository for an index: python ci/address.py https://github.com/OWNER/NAME

README's links and pictures become absolute, pyproject.toml gets the project's links, CITATION.cff the code's.
The release workflow runs this before it builds.  The result is not committed, because links in a clone lead
into the clone.  Standard library only.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?://|#)([^)\s]+)\)")
PAGES = {
    "Repository": "",
    "Documentation": "/blob/HEAD/docs/index.md",
    "Changelog": "/blob/HEAD/CHANGELOG.md",
    "Issues": "/issues",
}


def absolute(page: str, address: str) -> str:
    """A page whose links to files of the repository are absolute."""

    def link(match: re.Match[str]) -> str:
        picture, text, path = match.groups()
        return f"{picture}[{text}]({address}/{'raw' if picture else 'blob'}/HEAD/{path})"

    return LINK.sub(link, page)


def with_urls(pyproject: str, address: str) -> str:
    """pyproject.toml with the links of PAGES added."""
    urls = "".join(f'{name} = "{address}{path}"\n' for name, path in PAGES.items())
    written, count = re.subn(r"(\[project\.urls\]\n(?:\w+ = .*\n)+)", rf"\g<1>{urls}", pyproject)
    if count != 1:
        raise ValueError("pyproject.toml has no table [project.urls]")
    return written


def write(root: Path, address: str) -> None:
    """Write the address into the three files of a checkout."""
    readme, pyproject, citation = (root / name for name in ("README.md", "pyproject.toml", "CITATION.cff"))
    if "\nRepository = " in pyproject.read_text():
        raise ValueError("pyproject.toml names a repository already")
    readme.write_text(absolute(readme.read_text(), address))
    pyproject.write_text(with_urls(pyproject.read_text(), address))
    cited = citation.read_text()
    citation.write_text(cited.replace("license:", f"repository-code: {address}\nlicense:", 1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address", help="https://HOST/OWNER/NAME, without a slash at the end")
    given = parser.parse_args().address
    if not re.fullmatch(r"https://[\w.-]+/[\w.-]+/[\w.-]*\w", given):
        parser.error(f"{given!r} is no address of a repository, such as https://github.com/OWNER/NAME")
    write(ROOT, given)
