"""What the repository promises about itself."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path for top in ("shadeproxy", "sdk", "tests", "bench") for path in (ROOT / top).rglob("*.py")
)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_stays_small_and_has_no_open_ends(path):
    text = path.read_text()
    assert text.count("\n") <= 400 or "tests" in path.relative_to(ROOT).parts
    open_end = re.search(r"#.*\b(TODO|FIXME|XXX|HACK)\b", text)
    assert open_end is None or path == Path(__file__), open_end


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


def test_nothing_that_is_compiled_or_generated_is_kept():
    """A stale module of one Python would be loaded beside sources that it does not fit."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=False, text=True)
    if tracked.returncode:
        pytest.skip(tracked.stderr)  # somebody else's checkout
    assert [name for name in tracked.stdout.splitlines() if name.endswith((".so", ".c", ".pyc", ".o"))] == []
