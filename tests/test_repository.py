"""Rules that the repository keeps for itself."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path for top in ("shadeproxy", "sdk", "tests", "bench") for path in (ROOT / top).rglob("*.py")
)


def test_files_stay_small_and_have_no_open_ends():
    texts = {path.relative_to(ROOT): path.read_text() for path in SOURCES}
    assert len(texts) > 1000
    too_long = [path for path, text in texts.items() if text.count("\n") > 400 and "tests" not in path.parts]
    assert too_long == []
    open_end = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b")
    of_this_test = Path(__file__).relative_to(ROOT)
    assert [path for path, text in texts.items() if open_end.search(text) and path != of_this_test] == []


def test_make_test_rgw_looks_where_tests_need_a_ceph():
    (folders,) = re.findall(r"-m rgw (.+)", (ROOT / "Makefile").read_text())
    marked = [str(path.relative_to(ROOT)) for path in SOURCES if "pytest.mark." + "rgw" in path.read_text()]
    assert len(marked) > 5
    assert [name for name in marked if not name.startswith(tuple(f"{one}/" for one in folders.split()))] == []


def test_every_package_states_its_law():
    silent = [
        path for path in SOURCES if path.name == "__init__.py" and not path.read_text().startswith('"""')
    ]
    assert silent == []


def test_the_threat_model_names_tests_that_exist():
    names = re.findall(r"`((?:tests/)?[a-z0-9_/]*test_\w+\.py)`", (ROOT / "docs" / "security.md").read_text())
    there = {str(path.relative_to(ROOT)) for path in SOURCES} | {path.name for path in SOURCES}
    assert len(names) > 20
    assert [name for name in names if name not in there] == []


def test_no_test_module_imports_another():
    """Test modules share code in tests/support only, and pytest finds the fixtures of a
    conftest.py by name.
    """
    for path in (path for path in SOURCES if ROOT / "tests" in path.parents):
        names = []
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names if alias.name.startswith("tests.")]
            elif isinstance(node, ast.ImportFrom) and (node.level or node.module.startswith("tests")):
                names += [f"{node.module}.{alias.name}" for alias in node.names]
        theirs = [name for name in names if re.search(r"(^|\.)(conftest|test_\w+)(\.|$)", name)]
        assert not theirs, f"{path.relative_to(ROOT)} imports {theirs}"


def test_nothing_that_is_built_is_kept():
    def listed(*options):
        try:
            told = subprocess.run(["git", "ls-files", *options], cwd=ROOT, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("not a checkout that git reads")
        return told.stdout.decode().splitlines()

    assert listed("--cached", "--ignored", "--exclude-standard") == []
    assert [name for name in listed() if name.endswith((".c", ".so", ".pyc", ".whl"))] == []
