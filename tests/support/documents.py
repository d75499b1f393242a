"""Python examples in the documents."""

import re
from pathlib import Path

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"


def block(name: str) -> str:
    """Return the Python example of docs/protocol.md that contains ``name``."""
    (found,) = (
        part for part in re.findall(r"```python\n(.*?)```", PROTOCOL.read_text(), re.DOTALL) if name in part
    )
    return found
