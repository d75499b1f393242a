"""Renders the templates of a Helm chart, as far as the project's own chart uses the language of Go templates.

An action, a function or a value that this module does not know raises an error. So no part of a template is
left out silently.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

_ACTION = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|\(|\)|\||[^\s()|]+')

Node = str | tuple[str, str, list["Node"], list["Node"]]


class Failed(Exception):
    """A template ended the installation by ``fail``, with this text."""


class Chart:
    """The chart in a directory. ``values`` replace values of the chart's own values.yaml."""

    def __init__(self, directory: Path, values: dict[str, Any], *, release: str = "shade") -> None:
        about = yaml.safe_load((directory / "Chart.yaml").read_text())
        own = yaml.safe_load((directory / "values.yaml").read_text())
        self._templates = directory / "templates"
        self._root = {
            "Values": _merged(own, values),
            "Release": {"Name": release, "Namespace": "training"},
            "Chart": {"AppVersion": about["appVersion"]},
            "Template": {"BasePath": "templates"},
        }
        self._named: dict[str, list[Node]] = {}
        for path in sorted(self._templates.glob("*.tpl")):
            self.text(path.name)

    def objects(self) -> list[dict[str, Any]]:
        """Return the Kubernetes objects of all templates."""
        texts = [self.text(path.name) for path in sorted(self._templates.glob("*.yaml"))]
        return [one for text in texts for one in yaml.safe_load_all(text) if one]

    def text(self, name: str) -> str:
        """Return the text of one rendered template."""
        return self._write(_parse((self._templates / name).read_text()), self._root)

    def _write(self, nodes: list[Node], dot: Any) -> str:
        return "".join(node if isinstance(node, str) else self._act(*node, dot) for node in nodes)

    def _act(self, kind: str, expression: str, then: list[Node], otherwise: list[Node], dot: Any) -> str:
        if kind == "define":
            self._named[json.loads(expression)] = then
            return ""
        value = self._value(_WORD.findall(expression), dot)
        if kind == "write":
            return _shown(value)
        inner = value if kind == "with" else dot
        return self._write(then, inner) if value else self._write(otherwise, dot)

    def _value(self, words: list[str], dot: Any) -> Any:
        piped: list[Any] = []
        for stage in _stages(words):
            name, arguments = stage[0], [self._one(word, dot) for word in stage[1:]]
            if name in self._functions:
                piped = [self._functions[name](*arguments, *piped)]
            else:
                assert len(stage) == 1, stage
                piped = [self._one(name, dot)]
        return piped[0]

    def _one(self, word: str | list[str], dot: Any) -> Any:
        if isinstance(word, list):
            return self._value(word, dot)
        if word.startswith('"'):
            return json.loads(word)
        if word.lstrip("-").isdecimal():
            return int(word)
        value = self._root if word.startswith("$") else dot
        for name in filter(None, word.lstrip("$").split(".")):
            value = value[name]
        return value

    @property
    def _functions(self) -> dict[str, Callable[..., Any]]:
        return {
            "include": self._include,
            "required": _required,
            "fail": _fail,
            "eq": lambda one, other: one == other,
            "ne": lambda one, other: one != other,
            "not": lambda one: not one,
            "and": lambda one, other: one and other,
            "add": lambda *numbers: sum(numbers),
            "print": lambda *texts: "".join(texts),
            "default": lambda otherwise, value: value or otherwise,
            "quote": lambda value: json.dumps(_shown(value)),
            "toYaml": lambda value: yaml.safe_dump(value, sort_keys=False).rstrip("\n"),
            "nindent": lambda count, text: "".join(f"\n{' ' * count}{line}" for line in text.split("\n")),
            "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
        }

    def _include(self, name: str, dot: Any) -> str:
        if name.startswith("templates/"):
            return self.text(name.removeprefix("templates/"))
        return self._write(self._named[name], dot)


def _parse(text: str) -> list[Node]:
    words = list(_words(text))
    nodes, end = _until_end(words, 0)
    assert end == len(words), f"an end too many: {words[end:]}"
    return nodes


def _words(text: str) -> Iterator[tuple[str, str]]:
    """Yield texts and actions in turn. If an action has a dash at its left or right, the white space on that
    side is dropped.
    """
    at = 0
    for found in _ACTION.finditer(text):
        left, action, right = found.groups()
        before, at = text[at : found.start()], found.end()
        yield "text", before.rstrip() if left else before
        yield "action", action
        if right:
            at += len(text[at:]) - len(text[at:].lstrip())
    yield "text", text[at:]


def _until_end(words: list[tuple[str, str]], at: int) -> tuple[list[Node], int]:
    nodes: list[Node] = []
    while at < len(words):
        kind, text = words[at]
        verb = text.partition(" ")[0]
        if kind == "text":
            nodes.append(text)
            at += 1
        elif verb in {"end", "else"}:
            return nodes, at
        elif verb in {"if", "with", "define"}:
            node, at = _block(words, at)
            nodes.append(node)
            at += 1
        else:
            nodes.append(("write", text, [], []))
            at += 1
    return nodes, at


def _block(words: list[tuple[str, str]], at: int) -> tuple[Node, int]:
    """Return the block whose first action is ``words[at]``, and the index of its end."""
    verb, _, expression = words[at][1].partition(" ")
    then, at = _until_end(words, at + 1)
    otherwise: list[Node] = []
    end = words[at][1]
    if end.startswith("else "):
        words[at] = ("action", end.removeprefix("else "))
        node, at = _block(words, at)
        otherwise = [node]
    elif end == "else":
        otherwise, at = _until_end(words, at + 1)
    return (verb, expression, then, otherwise), at


def _stages(words: list[str]) -> list[list[Any]]:
    """Split an expression at its pipes. Words in parentheses become one nested list."""
    stages: list[list[Any]] = [[]]
    at = 0
    while at < len(words):
        if words[at] == "|":
            stages.append([])
        elif words[at] == "(":
            depth, start = 1, at + 1
            while depth:
                at += 1
                depth += {"(": 1, ")": -1}.get(words[at], 0)
            stages[-1].append(words[start:at])
        else:
            stages[-1].append(words[at])
        at += 1
    return stages


def _merged(own: Any, values: Any) -> Any:
    if not (isinstance(own, dict) and isinstance(values, dict)):
        return values
    return own | {name: _merged(own.get(name), value) for name, value in values.items()}


def _required(text: str, value: Any) -> Any:
    if value in {None, ""}:
        raise Failed(text)
    return value


def _fail(text: str) -> None:
    raise Failed(text)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
