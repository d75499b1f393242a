"""The product passes a namespace wherever it makes an ``ObjectRef``. The default, the proxy's own namespace,
would be wrong for another client's object.
"""

import ast
from pathlib import Path

import shadeproxy

ROOT = Path(shadeproxy.__file__).parent
# Packages that need no namespace. An origin tells accounts apart by their credentials, and the other packages
# use only one account.
ELSEWHERE = ("origin", "bench", "demo", "studies")
FIELDS = 3


def made(tree: ast.AST) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "ObjectRef"
        and not any(isinstance(argument, ast.Starred) for argument in node.args)
    ]


def test_every_reference_names_its_namespace():
    seen = 0
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] in ELSEWHERE:
            continue
        for call in made(ast.parse(path.read_text())):
            seen += 1
            given = len(call.args) + len(call.keywords)
            assert given == FIELDS, f"{path}:{call.lineno} leaves the namespace out"
    assert seen
