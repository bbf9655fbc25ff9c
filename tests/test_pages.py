"""README and docs: links lead somewhere, code compiles and runs, and named commands exist."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import re
from pathlib import Path

import forked
import pytest
import torch

import helion_sinkhorn

ROOT = Path(__file__).resolve().parents[1]
NAMES = "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tritonbench_ops/README.md"
PAGES = [ROOT / name for name in NAMES]
PAGES += sorted(p for p in (ROOT / "docs").rglob("*.md"))
OPTIONAL = {"transformers"}
"""Packages that an example may import and the test suite may lack; nothing else excuses an example."""
NOT_OURS = {"benchmarks/run.py"}
"""A script of Helion, in what tritonbench_ops/README.md says of its driver."""
pages = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M))


def anchors(text: str) -> set[str]:
    """The anchors that GitHub and mkdocs give the headings of a page."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    titles = re.findall(r"^#+ (.*)$", prose, re.M)
    # of the API reference
    listed = set(re.findall(r"^::: (.*)$", prose, re.M))
    return listed | {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def examples(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.S | re.M)


def broken(page: Path, text: str) -> list[str]:
    """Links to files or headings that are not there."""
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if link.startswith("https://"):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            dead.append(link)
    return dead


def test_pages_that_the_code_names_exist():
    named = {
        (path.relative_to(ROOT).as_posix(), page)
        for folder in ("helion_sinkhorn", "ci", "tritonbench_ops", "benchmarks", "docs", "tests")
        for path in (ROOT / folder).rglob("*.py")
        for page in re.findall(r"\bdocs/[\w/]+\.md\b", path.read_text())
    }
    assert ("helion_sinkhorn/ops/sinkhorn/api.py", "docs/dev/math.md") in named
    missing_pages = {(path, page) for path, page in named if not (ROOT / page).exists()}
    assert missing_pages == set()


@pages
def test_links_lead_somewhere(page):
    assert broken(page, page.read_text()) == []


def test_a_broken_link_is_found():
    page = ROOT / "docs" / "mhc.md"
    text = "[a](api.md) [b](apis.md) [c](#precision) [d](api.md#nothing) [e](#precisions) `[f](g.md)`"
    assert broken(page, text) == ["apis.md", "api.md#nothing", "#precisions"]


def said(example: str) -> list[str]:
    """What an example says that it prints: its lines that are comments."""
    return re.findall(r"^# (.*)$", example, re.M)


def missing(example: str) -> set[str]:
    """Optional packages that an example imports and that are not installed."""
    imported = set(re.findall(r"^\s*(?:import|from) (\w+)", example, re.M))
    return {package for package in imported & OPTIONAL if importlib.util.find_spec(package) is None}


def printed(example: str, page: str) -> list[str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), torch.random.fork_rng():
        exec(compile(example, page, "exec"), {"__name__": "__main__"})
    return out.getvalue().splitlines()


EXAMPLES = {
    f"{page.relative_to(ROOT).as_posix()}-{k}": example
    for page in PAGES for k, example in enumerate(examples(page))
}  # fmt: skip


def test_every_code_block_is_found_and_says_its_language():
    for page in PAGES:
        fences = re.findall(r"^ *```(.*)$", page.read_text(), re.M)
        assert set(fences[::2]) <= {"python", "text"}, page
        assert fences[::2].count("python") == len(examples(page)), page


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run_as_pasted_and_print_what_their_comments_say(name, monkeypatch):
    # torch.device("meta") does not know the torch.empty of `poisoned_memory`
    monkeypatch.undo()
    if lacks := missing(EXAMPLES[name]):
        pytest.skip(f"needs {', '.join(sorted(lacks))}")
    example = EXAMPLES[name]
    if "transformers" in example:
        # a model of 43 layers in a process that has run thousands of tests has ended that process
        assert forked.printed("-c", example).splitlines() == said(example)
    else:
        assert printed(example, name) == said(example)


def test_only_optional_packages_excuse_an_example(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert missing("import no_such_package\nfrom torch import transformers_like") == set()
    assert missing("def f():\n    import transformers.models") == {"transformers"}


def unknown(text: str) -> list[str]:
    """Targets, modules, their options and scripts that a page names and the repository lacks."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    commands = re.findall(r"(?:^    |`)make ((?:[a-z-]+(?: |$|`))+)", text, re.M)
    absent = [t for words in commands for t in words.replace("`", " ").split() if t not in targets]
    ours = "helion_sinkhorn|benchmarks|ci|tritonbench_ops|docs"
    for module, options in re.findall(rf"python -m ((?:{ours})[\w.]*)([^\n`#]*)", text):
        path = ROOT / module.rstrip(".").replace(".", "/")
        files = [*path.rglob("*.py")] if path.is_dir() else [path.with_suffix(".py")]
        if not all(file.exists() for file in files):
            absent.append(module)
        elif not module.startswith("tritonbench_ops"):
            # the flags of run.py too are options there
            source = "".join(file.read_text() for file in files)
            absent += [o for o in re.findall(r" (--[a-z][\w-]*)", options) if f'"{o}"' not in source]
    scripts = re.findall(r"python ((?:examples|ci|benchmarks)/\w+\.py)", text)
    return absent + [path for path in scripts if path not in NOT_OURS and not (ROOT / path).exists()]


@pages
def test_named_commands_exist(page):
    assert unknown(page.read_text()) == []


def test_an_unknown_command_is_found():
    text = (
        "`make nothing` and\n    make demo whatever\n    python -m ci.nowhere\n    python examples/none.py\n"
        "`python -m helion_sinkhorn show --device h200 --colour`"
    )
    assert unknown(text) == ["nothing", "whatever", "ci.nowhere", "--colour", "examples/none.py"]


WORKFLOWS = ROOT / ".github" / "workflows"


@pytest.mark.parametrize("workflow", sorted(WORKFLOWS.glob("*.yml")), ids=lambda p: p.name)
def test_cache_keys_of_workflows_hash_files_that_exist(workflow):
    calls = re.findall(r"hashFiles\((.*?)\)", workflow.read_text())
    globs = [glob for call in calls for glob in re.findall("'(.+?)'", call)]
    assert [g for g in globs if not any(ROOT.glob(g))] == []


def test_the_site_has_every_page():
    named = sorted(re.findall(r"([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    # made by the build
    named.remove("examples.md")
    assert named == sorted(p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md"))


PUBLIC = {n: getattr(helion_sinkhorn, n) for n in helion_sinkhorn.__all__ if n not in ("nn", "reference")}
PUBLIC |= {n: c for n, c in vars(helion_sinkhorn.nn).items() if n[0].isupper()}


def test_the_reference_has_every_public_name():
    listed = re.findall(
        r"^::: helion_sinkhorn\.(?:nn\.)?(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.M
    )
    assert len(listed) == len(set(listed))
    assert PUBLIC.keys() <= set(listed)
    modules = re.findall(r"^::: (helion_sinkhorn\.(?:integrations|mhc)[\w.]*)\.(\w+)$",
                         (ROOT / "docs" / "api.md").read_text(), re.M)  # fmt: skip
    for module, name in modules:
        source = Path(importlib.util.find_spec(module).origin).read_text()
        assert re.search(rf"^(?:def|class) {name}\(", source, re.M)


def test_the_iteration_count_has_the_names_that_the_page_lists():
    parameters = {
        (name, parameter)
        for name, c in PUBLIC.items()
        for parameter in inspect.signature(c).parameters
        if parameter.endswith("iters")
    }
    page = (ROOT / "docs" / "sinkhorn.md").read_text().split("## Names of the iteration count")[1]
    assert {parameter for _, parameter in parameters} == set(re.findall(r"`(\w*iters)`", page))
    others = {name for name, parameter in parameters if parameter != "n_iters"}
    assert others == set(re.findall(r"`(?:nn\.)?(\w+)`", page)) - {p for _, p in parameters}


def described(docstring: str) -> list[str]:
    """What stands before the colons of an Args section; the API reference takes each for one parameter."""
    section = re.search(r"^( *)Args:(.*?)(?=^\1\S|\Z)", docstring, re.S | re.M)
    if not section:
        return []
    indent = len(section[1]) + 4
    return re.findall(rf"^ {{{indent}}}(\S.*?):", section[2], re.M)


LIKE_ANOTHER = {"Out", "Plan", "Reduce", "plan", "HyperBoundary", "Sinkhorn"}
"""Whose arguments another docstring, or those of the fields, describe."""


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - LIKE_ANOTHER))
def test_a_docstring_describes_each_argument(name):
    public = PUBLIC[name]
    assert set(described(inspect.cleandoc(public.__doc__))) == set(inspect.signature(public).parameters)


HELION = {
    "autotuner/aot_cache.py:184": "for compat_compute in compatible_computes:",
    "_hardware.py:78": "return [self.compute_capability, *arch_list]",
    "autotuner/aot_runner.py:93": "threshold: float = 1.1",
    "aot_cache.py:964": "spec.loader.exec_module(module)",
    "aot_cache.py:396": "self.data_dir.mkdir(parents=True, exist_ok=True)",
    "aot_kernel.py:531": 'settings.setdefault("static_shapes", False)',
    "aot_cache.py:978": "kernels compile the selected config for each observed BoundKernel and",
}
"""Lines of Helion that docs/dev/helion.md names, in 1.5.0 and 1.5.1."""


def test_named_lines_of_helion_are_there():
    section = (ROOT / "docs" / "dev" / "helion.md").read_text().partition("## Why stored configs are not")[2]
    assert re.findall(r"`([\w/]+\.py:\d+)`", section) == list(HELION)
    (package,) = importlib.util.find_spec("helion").submodule_search_locations
    for place, expected in HELION.items():
        file, _, line = place.partition(":")
        path = Path(package) / (file if "/" in file or file[0] == "_" else f"autotuner/{file}")
        assert path.read_text().splitlines()[int(line) - 1].strip() == expected, place


def words(*pages: Path) -> int:
    return sum(len(page.read_text().split()) for page in pages)


def test_pages_are_few_and_short():
    """What somebody reads; the tables of docs/bench are what a command writes."""
    docs = ROOT / "docs"
    assert words(ROOT / "README.md") <= 900
    assert len(list(docs.glob("*.md"))) <= 12
    assert words(*docs.glob("*.md")) <= 22_000
    assert words(*docs.glob("dev/*.md")) <= 20_000


def test_badges_say_what_the_package_needs():
    project = (ROOT / "pyproject.toml").read_text()
    needs = {
        "python": r'^requires-python = ">=([\d.]+)"', "torch": r'^    "torch>=([\d.]+)"',
        "helion": r'^    "helion>=(\d+\.\d+)', "license": r'^license = "(\w+)"',
    }  # fmt: skip
    needed = {name: re.search(pattern, project, re.M)[1] for name, pattern in needs.items()}
    shown = re.findall(r"/badge/(\w+)-([\w.]+?)(?:%2B)?-\w+\)", (ROOT / "README.md").read_text())
    assert dict(shown) == needed
