"""What a person wrote under a study's tables: it stays when they are made anew."""

from pathlib import Path

_READ_BY_HAND = "## What it shows, and what it does not"


def kept(earlier: Path) -> str:
    """The last section of an earlier page, or its title alone."""
    text = earlier.read_text() if earlier.exists() else ""
    _, found, words = text.partition(_READ_BY_HAND)
    return f"{_READ_BY_HAND}{words.rstrip()}" if found else _READ_BY_HAND
