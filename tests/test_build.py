"""The build of the package compiles modules if there is a compiler, and succeeds without one."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from shadeproxy.core.compiled import is_made_of
from tests.support.compiler import write_quick_compiler

ROOT = Path(__file__).parent.parent
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
COMPILER = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
HEADERS = Path(sysconfig.get_path("include"), "Python.h")

needs_compiler = pytest.mark.skipif(
    COMPILER is None or not HEADERS.is_file(), reason="needs a C compiler and the Python headers"
)


@pytest.fixture
def tree(tmp_path):
    """Make a tree with all files that the build reads, and small modules that are compiled quickly."""
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    root = tmp_path / "shadeproxy"
    package, policy, index = root / "api" / "s3", root / "policy", root / "engine" / "index"
    core, hints = root / "core", root / "hints"
    for room in (package, policy, index, core, hints):
        room.mkdir(parents=True)
        for parent in (room, *list(room.parents)[: len(room.relative_to(tmp_path).parts) - 1]):
            (parent / "__init__.py").touch()
    (core / "_heads.pyx").write_text("cdef int ONE = 1\n")
    (policy / "_kernels.pyx").write_text("cpdef int thrice(int one):\n    return 3 * one\n")
    (index / "_page_table.pyx").write_text("cdef int NONE = 0\n")
    (hints / "_job_state.pyx").write_text("cdef int NONE = 0\n")
    (package / "_blocks.pxi").write_text("cdef int TWO = 2\n")
    (package / "_sending.pxi").write_text("cdef int NONE = 0\n")
    (package / "_request_cache.pyx").write_text(
        'include "_blocks.pxi"\n\ncpdef int twice(int one):\n    return TWO * one\n'
    )
    return tmp_path


def build(tree, *, version="standard", **environment):
    """Build the wheel. Return the names of the files in it, its own file name, the text on stderr, and the
    files that are new in the tree.
    """
    before = set(tree.rglob("*"))
    script = (
        "import sys\n"
        "from hatchling.builders.wheel import WheelBuilder\n"
        "print(*WheelBuilder('.').build(directory=sys.argv[1], versions=[sys.argv[2]]))\n"
    )
    out = tree.parent / f"{tree.name}-out"
    if COMPILER is not None:
        out.mkdir(exist_ok=True)
        environment = {"CC": write_quick_compiler(COMPILER, out)} | environment
    ended = subprocess.run(
        [sys.executable, "-c", script, out, version],
        cwd=tree,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    wheel = Path(ended.stdout.split()[-1])
    new = {str(path.relative_to(tree)) for path in set(tree.rglob("*")) - before}
    return set(zipfile.ZipFile(wheel).namelist()), wheel.name, ended.stderr, new


@needs_compiler
def test_a_wheel_holds_the_compiled_module_and_the_tree_stays_as_it_was(tree):
    older = tree / "shadeproxy" / "api" / "s3" / "_lane.cpython-27-other.so"
    older.touch()
    names, wheel, _, new = build(tree)
    assert {name for name in names if "_request_cache" in name} == {
        "shadeproxy/api/s3/_request_cache.pyx",
        f"shadeproxy/api/s3/_request_cache{SUFFIX}",
    }
    assert f"shadeproxy/policy/_kernels{SUFFIX}" in names
    assert not wheel.endswith("-any.whl")
    assert new == set()


@needs_compiler
@pytest.mark.parametrize(
    ("broken", "whole"),
    [("policy/_kernels", "api/s3/_request_cache"), ("api/s3/_request_cache", "policy/_kernels")],
)
def test_a_module_that_cannot_be_compiled_leaves_the_others(tree, broken, whole):
    (tree / "shadeproxy" / f"{broken}.pyx").write_text("cdef (\n")
    names, wheel, stderr, new = build(tree)
    modules = {name for name in names if name.endswith(".so")}
    assert modules == {
        f"shadeproxy/{one}{SUFFIX}"
        for one in (whole, "core/_heads", "engine/index/_page_table", "hints/_job_state")
    }
    assert not wheel.endswith("-any.whl")
    assert new == set()
    (line,) = [line for line in stderr.splitlines() if line.startswith("shadeproxy: ")]
    assert f"{broken.rpartition('/')[2]}.pyx is not compiled" in line


@needs_compiler
def test_a_pure_wheel_is_for_all_machines_and_has_no_module(tree):
    names, wheel, _, _ = build(tree, SHADEPROXY_PURE="1")
    assert wheel.endswith("-py3-none-any.whl")
    assert not [name for name in names if name.endswith(".so")]


@needs_compiler
def test_an_editable_install_finds_the_module_until_it_can_no_longer_be_compiled(tree):
    module = tree / "shadeproxy" / "api" / "s3" / f"_request_cache{SUFFIX}"
    rest = ("core/_heads", "policy/_kernels", "engine/index/_page_table", "hints/_job_state")
    others = [tree / "shadeproxy" / f"{one}{SUFFIX}" for one in rest]
    for older in (module, *others):
        older.write_text("an older one")
    _, _, _, new = build(tree, version="editable")
    assert new == set()
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            """if True:
            import shadeproxy.api.s3._request_cache as m, shadeproxy.policy._kernels as k
            print(m.twice(k.thrice(7)), m.SOURCE, ','.join(m.SOURCES))""",
        ],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    answer, made_of, names = said.stdout.split()
    assert int(answer) == 42
    sources, beside = names.split(","), str(module)
    assert sources == ["_request_cache.pyx", "_blocks.pxi", "_sending.pxi"]
    assert is_made_of(made_of, sources, beside)
    for source in map(module.with_name, sources):
        text = source.read_text()
        source.write_text("")
        assert not is_made_of(made_of, sources, beside)
        source.write_text(text)
    assert not is_made_of(made_of, [*sources, "none"], beside)
    _, _, stderr, _ = build(tree, version="editable", CC=shutil.which("false"))
    assert "false' failed" in stderr
    assert not module.exists()
    assert not any(other.exists() for other in others)


@pytest.mark.parametrize(
    ("source", "compiler", "reason"),
    [("", "/no/such/compiler", "/no/such/compiler"), ("cdef (\n", COMPILER or "cc", "_request_cache.pyx")],
    ids=["no compiler", "a source with an error"],
)
def test_what_cannot_be_compiled_is_one_line_and_a_wheel_without(tree, source, compiler, reason):
    for path in tree.rglob("*.pyx"):
        path.write_text(source)
    names, wheel, stderr, new = build(tree, CC=compiler)
    assert wheel.endswith("-py3-none-any.whl")
    assert not [name for name in names if name.endswith((".so", ".c"))]
    assert new == set()
    said = [line for line in stderr.splitlines() if line.startswith("shadeproxy: ")]
    (line,) = [line for line in said if "_request_cache.pyx is not" in line]
    assert reason in line
    assert "The proxy works without" in line
    assert "install a C compiler and the Python headers (Debian: gcc libc6-dev python3-dev)" in line


_LOADED = """
import hashlib, sys, types
from pathlib import Path
module = sys.modules["shadeproxy.api.s3._request_cache"] = types.ModuleType("_request_cache")
module.CompiledHits = module.data_received = module.learn_slots = lambda _: None
module.CompiledWorkerHits = module.worker_data_received = None
module.SOURCES = ("_request_cache.pyx", "_blocks.pxi", "_sending.pxi", "_slots.pxi")
texts = b"".join(Path("shadeproxy/api/s3", name).read_bytes() for name in module.SOURCES)
MADE_OF
from shadeproxy.api.s3 import COMPILED
print(COMPILED)
"""


@pytest.mark.parametrize(
    ("made_of", "used"),
    [
        ("module.SOURCE = hashlib.sha256(texts).hexdigest()", True),
        ("module.SOURCE = hashlib.sha256(b'an older one').hexdigest()", False),
        ("", False),
    ],
    ids=["of this source", "of another", "of one that does not say"],
)
def test_a_module_that_was_compiled_of_another_source_is_not_used(made_of, used):
    script = _LOADED.replace("MADE_OF", made_of)
    said = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert said.split() == [str(used)]
