"""The complaints of a proxy: the error lines of its log. Lines that differ only in numbers are counted
together.
"""

import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec

_NUMBERS = re.compile(r"\d+|0x[0-9a-f]+")


class _LogLine(msgspec.Struct):
    event: str = ""
    level: str = ""
    exception: str = ""


def complaints(log: Path) -> list[str]:
    """Return a line for each kind of error line: its count, its text, and where the error was raised."""
    kinds: Counter[str] = Counter()
    for line in log.read_text(errors="replace").splitlines():
        with suppress(msgspec.MsgspecError):
            entry = msgspec.json.decode(line, type=_LogLine)
            if entry.level in {"error", "critical"}:
                trace = " / ".join(part.strip() for part in entry.exception.splitlines()[-3:])
                kinds[f"{_NUMBERS.sub('N', entry.event.replace(chr(10), ' '))}: {trace}"] += 1
            continue
        if line.startswith("Traceback"):
            kinds["a traceback that is no log line"] += 1
    return [f"{count} x {kind}" for kind, count in kinds.most_common()]
