"""What is installed, what importing it costs, and which dependencies the environment gets."""

from __future__ import annotations

import configparser
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from forked import printed
from shared import once

import helion_sinkhorn

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("helion_sinkhorn", "tuning_cache", "pyproject.toml", "README.md", "LICENSE", "CITATION.cff")
ADDRESS = "https://example.org/owner/name"


def load(name: str):
    """A module of ci that runs without the package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


bootstrap, address, hub = load("bootstrap"), load("address"), load("hub")


def output(command, **options) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_under(folder: Path) -> set[str]:
    """Paths of the files a user needs, relative to `folder`; a tuner leaves locks."""
    paths = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock")
    return {p.as_posix() for p in paths if "__pycache__" not in p.parts}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel built, offline, as a release does, from a copy: setuptools leaves files beside sources."""
    return once("wheel", lambda: built(tmp_path_factory.mktemp("wheel")))


def built(folder: Path) -> Path:
    for name in SOURCES:
        output(["cp", "-r", ROOT / name, folder])
    address.write(folder, ADDRESS)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    output([*build, "-w", folder / "dist", folder])
    (path,) = (folder / "dist").glob("*.whl")
    return path


def test_importing_touches_neither_helion_nor_cuda():
    code = """
import sys, torch
before = set(sys.modules)
import helion_sinkhorn
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new & {"helion", "triton", "triton_kernels"}), torch.cuda.is_initialized())
try:
    helion_sinkhorn.sinkhorn(torch.zeros(4, 4), n_iters=-1)
except ValueError as error:
    print(type(error).__name__)
# every kernel's row, its configs and its launcher
import helion_sinkhorn.lab.operators
print(sorted({"helion", "torch._dynamo", "torch._inductor"} & set(sys.modules)))
"""
    assert printed("-c", code).split() == ["[]", "False", "ValueError", "[]"]


def test_wheel_holds_the_package_and_the_tuning_cache(wheel):
    packed = {n for n in zipfile.ZipFile(wheel).namelist() if n.startswith("helion_sinkhorn/")}
    wanted = {f"helion_sinkhorn/{name}" for name in files_under(ROOT / "helion_sinkhorn")}
    wanted |= {f"helion_sinkhorn/tuning_cache/{name}" for name in files_under(ROOT / "tuning_cache")}
    assert packed == wanted
    assert {"helion_sinkhorn/py.typed", "helion_sinkhorn/tuning_cache/README.md"} <= packed


def test_wheel_has_one_import_package_with_the_plug_ins_of_servers(wheel):
    with zipfile.ZipFile(wheel) as packed:
        tops = {name.partition("/")[0] for name in packed.namelist()}
        (listed,) = (n for n in packed.namelist() if n.endswith(".dist-info/entry_points.txt"))
        points = configparser.ConfigParser()
        points.read_string(packed.read(listed).decode())
    own = {top for top in tops if not top.endswith(".dist-info")}
    assert own == {"helion_sinkhorn"}
    groups = {group: dict(points[group]) for group in points.sections()}
    assert groups.keys() == {"vllm.general_plugins", "sglang.srt.plugins"}
    for group, named in groups.items():
        (load,) = (EntryPoint(name, value, group).load() for name, value in named.items())
        assert load.__name__ in group


def test_an_index_shows_links_and_pictures(wheel):
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (n for n in packed.namelist() if n.endswith(".dist-info/METADATA"))
        metadata, _, page = packed.read(name).decode().partition("\n\n")
    urls = dict(re.findall(r"^Project-URL: (\w+), (.*)$", metadata, re.M))
    assert urls.keys() == {"Paper", *address.PAGES}
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", page, flags=re.S | re.M))
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    own = [link for link in (*links, *urls.values()) if link.startswith(f"{ADDRESS}/")]
    paths = [re.sub(r"^/(blob|raw)/HEAD/|#.*", "", link.removeprefix(ADDRESS)) for link in own]
    assert [path for path in paths if path != "/issues" and not (ROOT / path).exists()] == []
    assert f", hc_post, new streams]({ADDRESS}/raw/HEAD/docs/site.svg)" in page


def test_an_address_is_written_once(tmp_path):
    for name in ("pyproject.toml", "README.md", "CITATION.cff"):
        shutil.copy(ROOT / name, tmp_path)
    address.write(tmp_path, ADDRESS)
    assert f"\nrepository-code: {ADDRESS}\n" in (tmp_path / "CITATION.cff").read_text()
    with pytest.raises(ValueError, match="names a repository already"):
        address.write(tmp_path, ADDRESS)


def test_the_version_stands_in_one_place():
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", helion_sinkhorn.__version__)
    for name in ("pyproject.toml", "CITATION.cff", "mkdocs.yml"):
        assert helion_sinkhorn.__version__ not in (ROOT / name).read_text()


def test_the_changelog_is_in_the_form_of_keep_a_changelog():
    text = (ROOT / "CHANGELOG.md").read_text()
    released = [v for v in re.findall(r"^## (.*)$", text, re.M) if v != "[Unreleased]"]
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", v) for v in released)
    assert released[0].startswith(f"[{helion_sinkhorn.__version__}]")
    assert len(text.split()) <= 300 or len(released) > 1
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.M)) <= kinds


def test_the_source_distribution_names_every_tracked_folder():
    grafted = re.findall(r"^graft (.*)$", (ROOT / "MANIFEST.in").read_text(), re.M)
    tracked = {p.parent.name for p in ROOT.glob("*/*") if not p.parent.name.startswith(".")}
    assert {"benchmarks", "ci", "docs", "examples", "tests", "tuning_cache"} <= set(grafted) <= tracked


def test_installed_wheel_runs_and_reads_its_own_tuning_cache(wheel, tmp_path):
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    output([*install, "--target", site, wheel])
    code = """
import torch, helion_sinkhorn
from helion_sinkhorn.configs import store
assert helion_sinkhorn.sinkhorn(torch.zeros(2, 4, 4)).sub(0.25).abs().max() < 1e-5
print(helion_sinkhorn.__file__)
print(store.folders()[-1])
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HELION_SINKHORN_")}
    environment["PYTHONPATH"] = str(site)
    module, cache = printed("-c", code, cwd=tmp_path, env=environment).split("\n")[:2]
    assert Path(module) == site / "helion_sinkhorn" / "__init__.py"
    assert Path(cache) == site / "helion_sinkhorn" / "tuning_cache"
    assert files_under(Path(cache)) == files_under(ROOT / "tuning_cache")


def test_the_hub_s_folders_lead_to_the_package_beside_them(wheel, tmp_path):
    """Loaded by path under the name of its metadata, as by `kernels`, which make hub uses."""
    hub.write(wheel, tmp_path)
    place = tmp_path / "build" / "torch-cuda"
    code = f"""
import importlib.util, json, sys, torch
name = json.load(open("{place}/metadata.json"))["id"]
spec = importlib.util.spec_from_file_location(name, "{place}/__init__.py")
sys.modules[name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.helion_sinkhorn.__file__, module.sinkhorn(torch.zeros(4, 4)).sum().item(), *vars(module))
"""
    file, total, *names = printed("-c", code, cwd=tmp_path).split()
    assert Path(file) == place / "helion_sinkhorn" / "__init__.py"
    assert abs(float(total) - 4) < 1e-4
    assert {"hc_site", "layers", "nn"} <= set(names)


def test_the_hub_s_module_refuses_another_version_of_the_package():
    scope = {"__file__": __file__}
    with pytest.raises(ImportError, match=r"is imported, this is 0\.0\.9, .* in a new process"):
        exec(hub.INIT.format(version="0.0.9"), scope)


def test_helion_follows_torch():
    for of_2_11 in ("2.11.0", "2.11.1+rocm7.2"):
        assert bootstrap.helion_for(of_2_11) == "1.5.0"
    for newer in ("2.12.0", "2.13.0+cpu", "2.14.0.dev20261101+cu130", "3.0.0"):
        assert bootstrap.helion_for(newer) == "1.5.1"
    with pytest.raises(ValueError, match=r"torch 2\.10\.0 is too old.*2\.11 or newer; upgrade"):
        bootstrap.helion_for("2.10.0")


def test_tested_set_pairs_torch_with_its_helion():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split(";")[0].strip().split("==") for line in lines if not line.startswith("#"))
    assert pins["helion"] == bootstrap.helion_for(pins["torch"])


@pytest.mark.parametrize(
    ("version", "gpu", "suitable"),
    [("2.11.0", "13.0", True), ("2.12.0+rocm7.2", "7.2.53211", True), ("2.13.0+cpu", "", False),
     ("2.10.0+cu128", "12.8", False)],
)  # fmt: skip
def test_only_a_recent_gpu_build_of_torch_is_borrowed(version, gpu, suitable):
    assert bootstrap.Torch(version, gpu).suitable is suitable


def test_borrowed_packages_come_after_the_environment_s_own(tmp_path):
    theirs, folder = tmp_path / "host" / "site-packages", tmp_path / "venv"
    theirs.mkdir(parents=True)
    (theirs / "only_theirs.py").write_text("")
    (theirs / "both.py").write_text("owner = 'host'")
    venv.EnvBuilder(with_pip=False).create(folder)
    bootstrap.borrow(folder, [str(theirs)])
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "both.py").write_text("owner = 'environment'")
    code = "import only_theirs, both; print(both.owner)"
    assert output([folder / "bin" / "python", "-c", code]).strip() == "environment"
