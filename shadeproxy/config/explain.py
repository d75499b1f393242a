"""Turns pydantic's errors into lines for people. Each line names the key, its value, the place where the
value was set, and what to write instead.

The value of an unknown key is never shown, because the key may be the misspelt name of a setting that holds a
secret.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from shadeproxy.config.fields import WrongKeys
from shadeproxy.config.layers import Key

_WRITE = {
    "value_error": "{error}",
    "literal_error": "write {expected}",
    "bool_parsing": "write true or false",
    "bool_type": "write true or false",
    "int_parsing": "write a whole number",
    "int_type": "write a whole number",
    "int_from_float": "write a whole number",
    "greater_than_equal": "write {ge} or more",
    "less_than_equal": "write {le} or less",
    "string_type": 'write text in quotes, as in "text"',
    "path_type": 'write text in quotes, as in "text"',
    "missing": "is missing: write it",
}
_TABLES = {
    "rules": ("prefix", "data/"),
    "auth.clients": ("access_key", "trainer"),
    "cache.disks": ("path", "/mnt/nvme1"),
}
"""Settings that are lists of tables. For each, one key that such a table may have, and a value for that key:
error texts show them as an example.
"""
_SECRETIVE = ("token", "secret", "password", "credentials", "otel.headers")
_USER_INFO = re.compile("//[^/]*@")


def explain(error: ValidationError, model: type[BaseModel], places: Mapping[Key, str]) -> str:
    """Return one line for each error. ``places``: for each key, the place where its value was set."""
    return "\n".join(_line(detail, model, places) for detail in error.errors(include_url=False))


def dotted(key: Key) -> str:
    """Write ``("auth", "clients", 0, "allow")`` as ``auth.clients[0].allow``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return text.removeprefix(".")


def _line(detail: ErrorDetails, model: type[BaseModel], places: Mapping[Key, str]) -> str:
    key: Key = detail["loc"]
    place = _places_of(detail, places) or _place(key, places)
    where = f"{place}: " if place else ""
    if not key:
        return _message(detail)
    if detail["type"] == "tuple_type":
        return f"{where}{dotted(key)}{_shown(detail)}: {_list_form(dotted(key), place)}"
    if detail["type"] == "model_type":
        return f"{where}{dotted(key)}{_shown(detail)}: {_table_form(dotted(key), place)}"
    if detail["type"] == "extra_forbidden":
        return f"{where}{dotted(key)}: unknown key; {_suggestion(key, model)}"
    return f"{where}{dotted(key)}{_shown(detail)}: {_message(detail)}"


def _shown(detail: ErrorDetails) -> str:
    value, key = detail["input"], dotted(detail["loc"]).lower()
    # A user may write a secret where a table is required whose keys only refer to the secret. So never show a
    # text that was written in the place of a table.
    for_table = isinstance(value, str) and (detail["type"] == "model_type" or key == "auth.clients")
    hidden = for_table or any(word in key for word in _SECRETIVE)
    return f" = {_toml_like(value)}" if isinstance(value, str | int | float) and not hidden else ""


def _list_form(key: str, place: str) -> str:
    """Say in words how to write a list at ``place``: as JSON in the environment, as TOML elsewhere."""
    if key not in _TABLES:
        return 'write a list, as in ["a", "b"]'
    name, value = _TABLES[key]
    if place.startswith("environment"):
        return f'write a list of tables in JSON, as in [{{"{name}": "{value}"}}]'
    if place.startswith("--set"):
        return f'write a list of tables in TOML, as in [{{{name} = "{value}"}}]'
    return f'write each as a table of its own: a line [[{key}]], and below it {name} = "{value}"'


def _table_form(key: str, place: str) -> str:
    """Say in words how to write a table at ``place``."""
    if place.startswith("environment"):
        return f"is a table: set its keys, as in SHADEPROXY__{key.replace('.', '__').upper()}__KEY=VALUE"
    if place.startswith("--set"):
        return f"is a table: set its keys, as in --set {key}.KEY=VALUE"
    return f"is a table: write its keys below a line [{key}]"


def _places_of(detail: ErrorDetails, places: Mapping[Key, str]) -> str:
    """Return the places where the keys of a ``WrongKeys`` error were set. Return "" for an error of another
    class, or if none of the keys was set.
    """
    error = detail.get("ctx", {}).get("error")
    if not isinstance(error, WrongKeys):
        return ""
    keys: list[Key] = [(*detail["loc"], name) for name in error.keys]
    # A list is set as a whole, so the keys of its tables were set where the list was set.
    found = [place for key in keys for written, place in places.items() if key[: len(written)] == written]
    return " and ".join(dict.fromkeys(found))


def _place(key: Key, places: Mapping[Key, str]) -> str:
    """Return the place where the value of ``key`` was set. If ``key`` names a section or an item of a list,
    return the place of the first value in it.
    """
    for length in range(len(key), 0, -1):
        for written, place in places.items():
            if written[:length] == key[:length]:
                return place
    return ""


def _suggestion(key: Key, model: type[BaseModel]) -> str:
    known = list(_model_at(key[:-1], model).model_fields)
    close = difflib.get_close_matches(str(key[-1]), known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"known here: {', '.join(known)}"


def _model_at(key: Key, model: type[BaseModel]) -> type[BaseModel]:
    for part in key:
        if isinstance(part, str):
            model = next(_models(model.model_fields[part].annotation))
    return model


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _toml_like(value: str | float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{_USER_INFO.sub("//***@", value)}"' if isinstance(value, str) else str(value)


def _message(detail: ErrorDetails) -> str:
    context: Mapping[str, Any] = detail.get("ctx", {})
    template = _WRITE.get(detail["type"])
    if detail["type"] == "literal_error":
        context = {"expected": context["expected"].replace("'", '"')}
    return template.format(**context) if template else detail["msg"]
