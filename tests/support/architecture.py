"""The contents of docs/architecture.md as data (its drawing and its steps), and the functions of the code."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
_STEP = re.compile(r"\d+\. `(?P<file>[\w/.]+)` (?P<functions>`[\w.]+`(?:, `[\w.]+`)*): .+[.]")


class Step(NamedTuple):
    """One numbered step: a file, and the functions in it that the step names."""

    file: str
    functions: tuple[str, ...]

    @property
    def calls(self) -> set[tuple[str, str]]:
        return {(self.file, function) for function in self.functions}


def flow(title: str) -> list[list[Step]]:
    """Return the numbered lists of steps in the section with this title."""
    section = PAGE.read_text().split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    lists: list[list[Step]] = []
    for line in section.splitlines():
        if re.match(r"\d", line):
            match = _STEP.fullmatch(line)
            assert match is not None, f"no step: {line}"
            if line.startswith("1. "):
                lists.append([])
            lists[-1].append(Step(match["file"], tuple(re.findall(r"[\w.]+", match["functions"]))))
    return lists


def flows() -> list[Step]:
    """Return all steps of the document."""
    titles = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    return [step for title in titles for steps in flow(title) for step in steps]


def drawn() -> tuple[list[set[str]], list[set[str]]]:
    """Return the layers of the drawing from top to bottom, and the rooms in the engine."""
    drawing = PAGE.read_text().split("```text\n", 1)[1].split("```", 1)[0]
    layers: list[set[str]] = []
    rooms: list[set[str]] = []
    for line in drawing.splitlines():
        if match := re.match(r"│ (│ )?([\w· ]+?)  ", line):
            (rooms if match[1] else layers).append(set(match[2].split(" · ")))
        elif line.startswith("│ ┌ "):
            layers.append({line.split()[2]})
    return layers, rooms


def functions_of(file: str) -> set[str]:
    """Return the functions of a module and the methods of its classes, as ``Class.method``."""
    found: set[str] = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, _FUNCTION)}
        elif isinstance(node, _FUNCTION):
            found.add(node.name)
    return found


_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
