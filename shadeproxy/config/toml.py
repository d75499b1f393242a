"""Writes settings as TOML, with comments after the values. Only the types of values that settings have can be
written.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shadeproxy.config.layers import Key


def write_toml(values: Mapping[str, Any], note: Callable[[Key], str] = lambda _: "") -> str:
    """Write ``values`` as a TOML document. They may be tables, lists of tables, strings, numbers, booleans
    and lists.

    ``note(key)`` returns a comment for the end of that key's line, or "".
    """
    return "\n".join(_table(values, (), note)).lstrip("\n") + "\n"


def _table(values: Mapping[str, Any], at: Key, note: Callable[[Key], str]) -> Iterator[str]:
    plain = {name: value for name, value in values.items() if not _is_table(value)}
    if at and plain:
        yield f"\n[{'.'.join(map(str, at))}]"
    yield from _lines(plain, at, note)
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _table(value, (*at, name), note)
        elif _is_table(value):
            for item in value:
                yield f"\n[[{'.'.join(map(str, (*at, name)))}]]"
                yield from _lines(item, (), lambda _: "")


def _lines(values: Mapping[str, Any], at: Key, note: Callable[[Key], str]) -> Iterator[str]:
    for name, value in values.items():
        remark = note((*at, name))
        yield f"{name} = {_value(value)}" + (f"  # {remark}" if remark else "")


def _is_table(value: Any) -> bool:
    is_list_of_tables = isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)
    return isinstance(value, Mapping) or is_list_of_tables


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{name} = {_value(inner)}' for name, inner in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    # A string, number or boolean is written in TOML as in JSON.
    return json.dumps(value, ensure_ascii=False)
