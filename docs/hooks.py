"""Steps of the site's build: formulas as MathML, the programs of examples/ as a page, links out of docs/."""

from __future__ import annotations

import ast
import html
import re
import unicodedata
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TO_EXAMPLE = re.compile(r"\]\(((?:\.\./)*)\.\./examples/(\w+)\.py\)")
TAG = re.compile(r"\\tag\{(\w+)\}")
STYLED = re.compile(r' mathvariant="(bold|sans-serif)">(\w)<')
ASSIGNED = re.compile(r"<mo><mrow><mo>([^<]*)</mo></mrow></mo><mo>([^<]*)</mo>")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)


def on_files(files: Any, config: Any, **_: object) -> Any:
    """Add a page with the programs of examples/."""
    files.append(File.generated(config, "examples.md", content=examples()))
    return files


def examples() -> str:
    """Each program's docstring as text, and its code below."""
    parts = ["# Examples\n\nPrograms of the repository, to be run in a clone of it."]
    for path in sorted(EXAMPLES.glob("*.py")):
        source = path.read_text()
        said = ast.get_docstring(ast.parse(source))
        code = source.split('"""', 2)[2].strip()
        parts.append(f"## {path.stem}\n\n{said}\n\n```python\n{code}\n```")
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Lead links to examples to their page; take away links to files that the site lacks."""
    up = r"\.\./" * (1 + page.file.src_uri.count("/"))
    absent = rf"\[([^\]]*)\]\((?:{up}[^)]*|[^):]*\.(?:csv|json|py|toml))\)"
    return re.sub(absent, r"\1", TO_EXAMPLE.sub(r"](\1examples.md#\2)", markdown))


def on_page_content(content: str, **_: object) -> str:
    """Write formulas, which arithmatex leaves as LaTeX, as MathML, which browsers show without a script."""

    def rendered(match: re.Match[str]) -> str:
        tex = html.unescape(match[2])
        if match[1] == "span":
            return mathml(tex)
        number = "".join(f"<span>({n})</span>" for n in TAG.findall(tex))
        return f'<div class="formula">{mathml(TAG.sub("", tex), "block")}{number}</div>'

    return FORMULA.sub(rendered, content)


def mathml(tex: str, display: str = "inline") -> str:
    """A formula as MathML that browsers know: they take bold and sans-serif letters by their code alone."""
    made = convert(tex.replace("{aligned}", "{align*}"), display=display)
    made = ASSIGNED.sub(r"<mo>\1\2</mo>", made)
    made = STYLED.sub(lambda match: f">{styled(*match.groups())}<", made)
    if "\\" in made or "<mi>&</mi>" in made:
        raise PluginError(f"latex2mathml does not know all of {tex!r}: {made}")
    return made


def styled(variant: str, letter: str) -> str:
    """The letter of mathematics in a style."""
    name = unicodedata.name(letter).replace("LATIN ", "").replace("LETTER ", "")
    return unicodedata.lookup(f"MATHEMATICAL {variant.upper()} {name}")
