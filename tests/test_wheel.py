"""The wheel has the proxy in it, and nothing that measures the proxy. It needs its base dependencies only."""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "api", "app", "cli", "cluster", "config", "core", "demo", "engine", "hints", "origin", "policy",
    "plan", "prefetch", "simulate", "state", "telemetry", "tiers",
}  # fmt: skip
SUFFIXES = {".py", ".pyi", ".pyx", ".pxi", ".html", ".css", ".js", ".txt", ".typed"}
OWN = {"__init__.py", "__main__.py", "py.typed"}

_BUILD = """
import sys
from hatchling.builders.wheel import WheelBuilder
print(*WheelBuilder(sys.argv[1]).build(directory=sys.argv[2], versions=["standard"]))
"""
_IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path[:] = [sys.argv[1], *sys.path]
allowed = set(sys.argv[2].split(","))

class Others:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in allowed and top not in sys.stdlib_module_names:
            raise ImportError(f"{name} is no base dependency")

sys.meta_path.insert(0, Others())
import shadeproxy
names = [one.name for one in pkgutil.walk_packages(shadeproxy.__path__, "shadeproxy.")]
of_extras = ("shadeproxy.demo", "shadeproxy.cluster.redis_log", "shadeproxy.telemetry.otel_sdk")
kept = [name for name in names if not name.startswith(of_extras) and not name.endswith("__main__")]
for name in kept:
    importlib.import_module(name)
print(len(kept), shadeproxy.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return a directory with the unpacked files of the pure wheel. test_install.py builds and installs the
    wheel with compiled modules, which takes ten times as long to build.
    """
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-c", _BUILD, str(ROOT), str(out)]
    pure = os.environ | {"SHADEPROXY_PURE": "1"}
    built = subprocess.run(command, capture_output=True, text=True, check=True, cwd=out, env=pure)
    with zipfile.ZipFile(built.stdout.split()[-1]) as archive:
        archive.extractall(out / "unpacked")
    return out / "unpacked"


def closure(requirements):
    """Return the names of these distributions, and of all distributions that they need."""
    found: set[str] = set()
    waiting = list(requirements)
    while waiting:
        text = waiting.pop()
        name = re.match(r"[\w.-]+", text)[0].lower().replace("_", "-")
        if name in found or "extra ==" in text:
            continue
        found.add(name)
        try:
            waiting += importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # Another platform or version of Python needs this distribution.
    return found


def test_it_holds_the_packages_of_the_proxy_and_nothing_else(wheel):
    (package,) = [one for one in wheel.iterdir() if not one.name.endswith(".dist-info")]
    assert package.name == "shadeproxy"
    assert {one.name for one in package.iterdir()} == PACKAGES | OWN
    assert {one.suffix for one in package.rglob("*") if one.is_file()} <= SUFFIXES


def test_nothing_in_it_measures_or_fails_on_purpose(wheel):
    names = {one.stem for one in (wheel / "shadeproxy").rglob("*.py")}
    assert not {name for name in names if re.search(r"faulty|chaos|soak|fuzz|bench|overload", name)}
    imported = {
        name.partition(".")[0]
        for one in (wheel / "shadeproxy").rglob("*.py")
        if one.relative_to(wheel).parts[1:] != ("cli", "main.py")
        for node in ast.walk(ast.parse(one.read_text()))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else
                     [alias.name for alias in node.names] if isinstance(node, ast.Import) else [])
    }  # fmt: skip
    assert not imported & {"shadeproxy_bench", "tests", "pytest"}


def test_every_module_imports_with_the_base_dependencies_alone(wheel):
    required = [one for one in importlib.metadata.requires("shadeproxy") or [] if "extra ==" not in one]
    distributions = closure(required)
    modules = importlib.metadata.packages_distributions()
    allowed = {
        module
        for module, owners in modules.items()
        if {owner.lower().replace("_", "-") for owner in owners} & distributions
    }
    assert {"aiohttp", "numpy", "pydantic"} <= allowed
    assert not allowed & {
        "torch",
        "sklearn",
        "matplotlib",
        "boto3",
        "moto",
        "shadeproxy_sdk",
        "shadeproxy_bench",
    }
    command = [
        sys.executable,
        "-I",
        "-c",
        _IMPORT_ALL,
        str(wheel),
        ",".join(sorted(allowed | {"shadeproxy"})),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=wheel)
    assert ended.returncode == 0, ended.stderr
    count, file = ended.stdout.split()
    assert int(count) > 200
    assert Path(file).is_relative_to(wheel)


def test_it_holds_the_page_and_the_license_of_what_the_page_draws_with(wheel):
    page = wheel / "shadeproxy" / "api" / "control" / "page"
    assert {one.name for one in page.iterdir()} == {
        "page.html", "page.css", "page.js", "charts.js", "show.js", "uplot.min.js", "uplot.min.css",
        "uplot.license.txt",
    }  # fmt: skip
    assert "MIT License" in (page / "uplot.license.txt").read_text()
