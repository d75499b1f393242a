"""A person's text under a study's tables: it stays when they are made again."""

from pathlib import Path

_READ_BY_HAND = "## What it shows, and what it does not"


def kept(earlier: Path) -> str:
    """Return ``kept_of`` the existing page, if there is one."""
    return kept_of(earlier.read_text() if earlier.exists() else "")


def kept_of(text: str) -> str:
    """Return the last section of an earlier page, or its title alone."""
    _, found, words = text.partition(_READ_BY_HAND)
    return f"{_READ_BY_HAND}{words.rstrip()}" if found else _READ_BY_HAND
