"""The files and functions that docs/architecture.md and CONTRIBUTING.md name exist.

tests/api/*/test_flows.py checks that the flows of docs/architecture.md really take these steps.
"""

import re
import tomllib

from tests.support.architecture import ROOT, drawn, flows, functions_of

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
PAGES = ("docs/architecture.md", "CONTRIBUTING.md")


def layers_of(name):
    (contract,) = [one for one in CONTRACTS if one["name"] == name]
    return [set(re.findall(r"\w+", layer.replace("shadeproxy.", ""))) for layer in contract["layers"]]


def test_the_drawing_has_the_layers_that_are_linted():
    layers, rooms = drawn()
    assert layers == layers_of("layers are strictly downward")
    assert rooms == layers_of("the rooms of the engine are strictly downward")


def test_the_steps_name_functions_that_exist():
    steps = flows()
    assert len(steps) > 40
    missing = [
        (step.file, function)
        for step in steps
        for function in step.functions
        if not (ROOT / step.file).is_file() or function not in functions_of(step.file)
    ]
    assert missing == []


def test_the_pages_name_files_that_exist():
    for page in PAGES:
        named = re.findall(r"`([\w.*-]+/[\w./*-]*|[\w-]+\.(?:toml|md|py))`", (ROOT / page).read_text())
        linked = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
        assert named
        assert [name for name in named if not list(ROOT.glob(name.rstrip("/")))] == []
        assert [name for name in linked if not ((ROOT / page).parent / name).exists()] == []
