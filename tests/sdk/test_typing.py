"""The public API as the type checker of a user sees it: in the installed package, marked by its py.typed.

``typed/loop.py`` has the usual calls with their types, and ``typed/mistakes.py`` the usual mistakes. The
examples of both READMEs are checked too. One run of mypy reads all these files.
"""

import ast
import builtins
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import shadeproxy_sdk as shade

HERE = Path(__file__).parent / "typed"
SDK = Path(shade.__file__).parents[1]
READMES = {"sdk": SDK / "README.md", "root": Path(__file__).parents[2] / "README.md"}
# mypy leaves the frameworks out. Reading the sources of torch takes a minute, and their types are not part of
# this API.
SETTINGS = """
[mypy]
strict = True
[mypy-torch.*,lightning.*,pytorch_lightning.*,transformers.*]
follow_imports = skip
[mypy-boto3.*]
ignore_missing_imports = True
"""
# The READMEs' examples have no annotations. Some subclass classes of frameworks that mypy leaves out.
EXAMPLE = "# mypy: allow-untyped-defs, allow-untyped-calls, allow-subclassing-any, check-untyped-defs"
DECLARED = {
    "client": "client: shadeproxy_sdk.Client",
    "data": "data: shadeproxy_sdk.S3Dataset",
    "job": "job: shadeproxy_sdk.Job",
    "sampler": "sampler: shadeproxy_sdk.ShadeSampler",
    "shade": "import shadeproxy_sdk as shade",
    "rank": "rank: int",
    "world": "world: int",
    "epochs": "epochs: int",
    "lightning": "import lightning",
    "transformers": "import transformers",
}
ERROR = re.compile(r"([\w.]+\.py):(\d+): error: .*\[([\w-]+)\]")
MARK = re.compile(r"# error: ([\w, -]+\w)")


def missing(block):
    """Return the names that an example uses but does not define."""
    used, made = set(), set(dir(builtins))
    for node in ast.walk(ast.parse(block)):
        match node:
            case ast.Name(name, ast.Load()):
                used.add(name)
            case ast.Name(name) | ast.arg(name) | ast.ClassDef(name):
                made.add(name)
            case ast.alias(name, other):
                made.add((other or name).split(".")[0])
    return sorted(used - made)


def examples():
    """Yield the Python blocks of the READMEs, each as a file. The file first declares the names that the
    block does not define.
    """
    for name, readme in READMES.items():
        blocks = [part.split("```")[0] for part in readme.read_text().split("```python\n")[1:]]
        for number, block in enumerate(blocks):
            lines = [DECLARED.get(one, f"{one}: typing.Any") for one in missing(block)]
            head = [EXAMPLE, "import typing", "import shadeproxy_sdk", *lines]
            yield f"{name}_{number}.py", "\n".join([*head, block])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return the errors that mypy finds in each file, in order: line, code and full text."""
    directory = tmp_path_factory.mktemp("typing")
    (directory / "mypy.ini").write_text(SETTINGS)
    for path in (HERE / "loop.py", HERE / "mistakes.py"):
        shutil.copy(path, directory)
    for name, text in examples():
        (directory / name).write_text(text)
    files = sorted(path.name for path in directory.glob("*.py"))
    command = [sys.executable, "-m", "mypy", "--cache-dir", "cache", *files]
    # The SDK lies on the interpreter's path and not on mypy's own, so mypy sees it as an installed package.
    # Without py.typed, mypy would read another copy, if one is installed beside the checkout.
    assert (SDK / "shadeproxy_sdk" / "py.typed").exists()
    environment = {name: value for name, value in os.environ.items() if name != "MYPYPATH"}
    environment["PYTHONPATH"] = str(SDK)
    ended = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, env=environment, check=False
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    errors = defaultdict(list)
    for line in ended.stdout.splitlines():
        if match := ERROR.fullmatch(line):
            errors[match[1]].append((int(match[2]), match[3], line))
    return errors


def test_the_usual_calls_have_the_types_that_a_user_writes(found):
    assert [line for *_, line in found["loop.py"]] == []


def test_the_usual_mistakes_are_errors_where_they_are_made(found):
    marked = {
        (number, code)
        for number, line in enumerate((HERE / "mistakes.py").read_text().splitlines(), 1)
        if (match := MARK.search(line))
        for code in match[1].split(", ")
    }
    assert len(marked) > 30
    assert {(number, code) for number, code, _ in found["mistakes.py"]} == marked


def test_the_examples_of_the_readmes_check(found):
    names = [name for name, _ in examples()]
    assert len(names) == 12
    assert [line for name in names for *_, line in found[name]] == []


def test_no_other_file_has_an_error(found):
    assert set(found) <= {"loop.py", "mistakes.py", *dict(examples())}
