"""Decodes JSON bodies: short bodies in one call, long arrays of numbers in slices.

A JSON decoder holds the interpreter lock until its call ends. So it blocks the event loop even from another
thread. Slices keep each call short. Law: both ways accept the same bodies, and refuse others with the same
words.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import InvalidRequest, MalformedBody
from shadeproxy.core.workpool import raise_if_cancelled
from shadeproxy.hints.manifest import NO_CHARACTER, lone_surrogate

SLICE_BYTES = 64 * 1024
_SKELETON_BYTES = 1024
_SEARCHED_BYTES = 1 << 20  # So much of a refused body is searched for the reason.
_BETWEEN = 16
"""Most bytes between the name of a field and its array. If there are more, the body is not decoded
in slices.
"""

SampleId = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]

Body = TypeVar("Body")


class Column(NamedTuple):
    """A field whose value is an array of numbers. ``kind``: its JSON type. ``dtype``: that of the numpy
    column made of it.
    """

    kind: Any
    dtype: type[np.generic]


def decode(data: bytes, kind: type[Body]) -> Body:
    """Decode JSON as ``kind``. Raises MalformedBody if it is no JSON, InvalidRequest if it has
    another shape.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the JSON body is not right: {error}", hint=_shape(kind)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if (lone := lone_surrogate(data[:_SEARCHED_BYTES])) is not None:
            hint = "text is UTF-8: write the character, or both surrogates of its pair"
            raise MalformedBody(f"the body is no JSON: {lone} is {NO_CHARACTER}", hint=hint) from None
        hint = "the body is JSON in UTF-8; NaN and Infinity are not JSON"
        raise MalformedBody(f"the body is no JSON: {error}", hint=hint) from None


def decode_columns(
    data: bytes, kind: type[Body], columns: dict[str, Column]
) -> tuple[Body, dict[str, NDArray[Any]]]:
    """Decode ``data`` as ``decode`` does. If possible, decode the fields that ``columns`` names in slices.
    Return the body, and by field the arrays that were decoded in slices. Such a field is empty in the body.

    May run on any thread. Raises the errors of ``decode``.
    """
    rest, arrays = data, dict[str, NDArray[Any]]()
    try:
        for name, column in columns.items():
            found = _find(rest, name)
            if found is not None:
                arrays[name] = _numbers(rest, *found, column)
                rest = rest[: found[0]] + rest[found[1] :]
        if arrays and _is_plain(rest, arrays):
            return decode(rest, kind), arrays
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, InvalidRequest, MalformedBody):
        pass  # Decode the whole body below: its error then says where in the body the fault is.
    return decode(data, kind), {}


def _is_plain(rest: bytes, arrays: Iterable[str]) -> bool:
    """Return True if ``rest``, a body without its arrays, is short, has no escapes, and names each array
    once. Only then has ``_find`` found the right arrays.
    """
    once = all(rest.count(b'"%b"' % name.encode()) == 1 for name in arrays)
    return once and len(rest) <= _SKELETON_BYTES and b"\\" not in rest


def _find(data: bytes, name: str) -> tuple[int, int] | None:
    """Return the start and the end of the array in the field ``name``, found by a search in the text; None if
    there seems to be no such array.
    """
    after = data.find(b'"%b"' % name.encode()) + len(name) + 2
    start = data.find(b"[", after, after + _BETWEEN) + 1
    stop = data.find(b"]", start)
    if after < len(name) + 2 or not start or stop < 0 or data[after : start - 1].strip() != b":":
        return None
    return start, stop


def _numbers(data: bytes, start: int, stop: int, column: Column) -> NDArray[Any]:
    """Return the numbers between ``start`` and ``stop``. Raises the errors of the JSON decoder and
    of numpy.
    """
    parts = [np.empty(0, column.dtype)]
    while start < stop or data[start - 1 : start] == b",":
        raise_if_cancelled()
        end = data.find(b",", min(start + SLICE_BYTES, stop), stop)
        end = stop if end < 0 else end
        numbers = msgspec.json.decode(b"[%b]" % data[start:end], type=column.kind)
        if not numbers:
            # The slice has no number: the array ends with a comma, or contains only white space.
            raise OverflowError("a comma without a number")
        parts.append(np.array(numbers, column.dtype))
        start = end + 1
    return np.concatenate(parts)


def _shape(kind: object) -> str:
    fields = getattr(kind, "__struct_fields__", ())
    if not fields:
        return "see /openapi.json"
    choices = [
        f"; {name} is one of {', '.join(map(str, get_args(one)))}"
        for name, one in get_type_hints(kind).items()
        if get_origin(one) is Literal
    ]
    return f"fields: {', '.join(fields)}{''.join(choices)}"
