"""The built site: formulas are rendered, the API reference has whole sentences, no page needs a network."""

from __future__ import annotations

import html
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from shared import once

import helion_sinkhorn
from helion_sinkhorn.lab import operators

for name in ("mkdocstrings", "latex2mathml"):
    pytest.importorskip(name, reason="needs the docs extra, which make docs installs")

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = {n: getattr(helion_sinkhorn, n) for n in helion_sinkhorn.__all__ if n not in ("nn", "reference")}
PUBLIC |= {f"nn.{n}": c for n, c in vars(helion_sinkhorn.nn).items() if n[0].isupper()}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> dict[str, str]:
    """The pages by name, built as make docs builds them."""
    return once("site", lambda: built(tmp_path_factory.mktemp("site")))


def built(folder: Path) -> dict[str, str]:
    # not --quiet, which hides warnings from --strict too
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = [*folder.rglob("*.html"), *folder.glob("search/*"), *folder.glob("style/*")]
    return {p.relative_to(folder).as_posix(): p.read_text() for p in files}


def words(page: str) -> str:
    """What a reader sees, in single spaces."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", page)).split())


def prose(page: str) -> str:
    """The article of a page without code."""
    (article,) = re.findall(r"<article.*?</article>", page, re.S)
    return re.sub(r"<(pre|code)\b.*?</\1>", "", article, flags=re.S)


def formulas(text: str) -> int:
    text = re.sub(r"^```.*?^```$|^    [^\n]*$|`[^`\n]*`", "", text, flags=re.S | re.M)
    return len(re.findall(r"\$\$.+?\$\$|\$[^$]+?\$", text, re.S))


@pytest.mark.parametrize("page", ["dev/math", "dev/linear_attention", "sinkhorn"])
def test_formulas_are_mathml(site, page):
    built = site[f"{page}.html"]
    assert built.count("<math ") == formulas((ROOT / "docs" / f"{page}.md").read_text()) > 0
    assert built.count("<math ") == built.count("</math>")


def test_no_latex_is_left(site):
    latex = {name: re.findall(r"\\[A-Za-z({\[]|\$|arithmatex", prose(page)) for name, page in site.items()
             if "<article" in page}  # fmt: skip
    assert {name: left for name, left in latex.items() if left} == {}


def test_what_latex2mathml_does_not_know_ends_the_build():
    from docs import hooks

    with pytest.raises(hooks.PluginError, match="does not know all of"):
        hooks.mathml(r"\begin{nowhere} a &= b \end{nowhere}")
    assert "\N{MATHEMATICAL BOLD DIGIT ONE}" in hooks.mathml(r"\mathbf 1")


def paragraphs(docstring: str) -> list[str]:
    """Those that have a title of their own, in one line each."""
    titled = re.findall(r"^((?:Numerical policy|Source): .*(?:\n +\S.*)*)", docstring, re.M)
    titled += re.findall(r"^Returns:\n((?: +\S.*\n?)+)", docstring, re.M)
    pages = (re.sub(r"docs/((?:dev/)?\w+\.md)", r"\1", paragraph) for paragraph in titled)
    return [" ".join(paragraph.replace("`", "").split()) for paragraph in pages]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_reference_has_whole_paragraphs(site, name):
    said = words(site["api.html"])
    docstring = inspect.cleandoc(PUBLIC[name].__doc__)
    assert [p for p in paragraphs(docstring) if p.replace(" ", "") not in said.replace(" ", "")] == []


def test_the_reference_has_no_boxes_and_wraps_signatures(site):
    page = site["api.html"]
    assert "admonition" not in page
    assert "<details" not in page
    signatures = re.findall(r'class="doc-signature.*?</pre>', page, re.S)
    lines = [html.unescape(re.sub(r"<[^>]+>", "", line)) for s in signatures for line in s.splitlines()]
    assert len(signatures) >= len(PUBLIC)
    assert max(map(len, lines)) <= 100


def test_formulas_of_docstrings_stand_by_themselves(site):
    page = site["api.html"]
    code = [html.unescape(re.sub(r"<[^>]+>", "", c)) for c in re.findall(r"<code>(.*?)</code>", page, re.S)]
    for formula in (
        "out_oc = post_o (f_c + bias_c) + sum_i comb[i, o] x_ic\n",
        "dfn_ji = w_i d_ji,  dw_i = ",
    ):
        assert any(formula in block for block in code)


NAMES = {"linear_attention": "recurrent_linear_attention", "sinkhorn_large": "sinkhorn"}
OPERATORS = {NAMES.get(name, name) for name in operators.OPERATORS}


def test_operators_and_their_results_are_in_the_reference(site):
    anchors = set(re.findall(r'id="(helion_sinkhorn\.[\w.]+)"', site["api.html"]))
    assert {
        "helion_sinkhorn.ops.mhc.site.api.Site",
        "helion_sinkhorn.ops.mhc.site.crossing.Crossing",
    } <= anchors
    link = re.compile(r'href="api\.html#helion_sinkhorn\.([\w.]+)"')
    pages = [text for page, text in site.items() if page != "api.html"]
    described = {name.rpartition(".")[2] for text in pages for name in link.findall(text)}
    assert {"hc_site", "hc_post", "dot_compress"} <= OPERATORS
    assert {*OPERATORS} <= {name.rpartition(".")[2] for name in anchors}
    assert OPERATORS - described == set()


def test_examples_are_on_the_site(site):
    page = site["examples.html"]
    for path in (ROOT / "examples").glob("*.py"):
        assert f'id="{path.stem}"' in page
    assert 'href="examples.html#train_mhc"' in site["index.html"]


def test_no_page_links_to_data_or_scripts_which_the_site_lacks(site):
    links = re.compile(r'href="([^":]+\.(?:csv|json|py|toml))"')
    assert {name: linked for name, page in site.items() if (linked := links.findall(page))} == {}


def test_nothing_is_loaded_from_a_network(site):
    loads = re.compile(
        r"<(?:script|img|iframe)[^>]*src=\"?(?:https?:)?//[^>]*>|<link[^>]*stylesheet[^>]*http[^>]*>"
    )
    assert {name: loads.findall(page) for name, page in site.items() if loads.search(page)} == {}


def test_search_works_from_a_file(site):
    """Browsers fetch no JSON and start no worker there: the index is a script, and a frame searches."""
    assert site["search/search_index.js"].startswith("var __index = ")
    assert "window.Worker = class" in site["style/iframe-worker.js"]
    assert '<script src="style/iframe-worker.js">' in site["index.html"]
