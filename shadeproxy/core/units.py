"""Sizes, speeds and times as people write them: "8 GiB", "100 MB/s", "2 s", "1 h", "250 ms"."""

import re
from math import isfinite

_SIZE_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgtp", start=1)
    for suffix, base in (("", 1024), ("b", 1000), ("i", 1024), ("ib", 1024))
}
_TIME_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
SIZE_FORMS = (
    '"8 GiB", "8Gi" or "8G" (8 x 1024^3 bytes), as "8 GB" (8 x 1000^3 bytes), or as a number of bytes'
)
_SIZE_STEPS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def parse_size(text: str | int) -> int:
    """Parse "8 GiB", "8Gi" or "8G" (powers of 1024), "8 GB" (powers of 1000) or a number of bytes into bytes.

    Raises ValueError, whose text says how to write a size.
    """
    if isinstance(text, int):
        return text
    match = _QUANTITY.fullmatch(text)
    factor = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None or not isfinite(size := float(match[1]) * factor):
        raise ValueError(f"{text!r} is not a size: write it as {SIZE_FORMS}")
    return int(size)


def parse_speed(text: str) -> float:
    """Parse "100 MB/s", or a size that is meant for each second, into bytes a second.

    Raises ValueError, whose text says how to write a speed.
    """
    try:
        speed = parse_size(text.removesuffix("/s"))
    except ValueError:
        speed = 0
    if speed <= 0:
        raise ValueError(f'{text!r} is no speed; write bytes a second, as "100 MB/s"')
    return float(speed)


def parse_duration(text: str | float) -> float:
    """Parse "250 ms", "2 s", "5 min", "1 h", "7 d" or a number of seconds into seconds.

    Raises ValueError, whose text says how to write a time.
    """
    if isinstance(text, int | float):
        return float(text)
    match = _QUANTITY.fullmatch(text)
    factor = _TIME_UNITS.get(match[2].lower() or "s") if match else None
    if match is None or factor is None or not isfinite(seconds := float(match[1]) * factor):
        raise ValueError(f'{text!r} is not a time: write it as "250 ms", "2 s", "5 min" or "1 h"')
    return seconds


def format_size(size_bytes: float) -> str:
    """Format ``size_bytes`` with a binary unit and at most one decimal: "1.5 GiB"."""
    value, step = float(size_bytes), 0
    while abs(value) >= 1024 and step < len(_SIZE_STEPS) - 1:
        value, step = value / 1024, step + 1
    return f"{value:.1f} {_SIZE_STEPS[step]}" if step else f"{int(value)} B"


def format_count(count: float, noun: str, form: str = ",") -> str:
    """Format a number and its noun, which is in the plural unless the number shows as 1: "1 epoch", "1,200
    reads". ``form``: the format of the number.
    """
    number = f"{count:{form}}"
    return f"{number} {noun}" if number == "1" else f"{number} {noun}s"
