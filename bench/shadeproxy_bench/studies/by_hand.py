"""The section of a study's page that a person wrote below the tables. It is kept when the tables are made
again.
"""

from pathlib import Path

_READ_BY_HAND = "## Findings and limits"


def kept(earlier: Path) -> str:
    """Return the section that a person wrote in the page at ``earlier``; only its title if there is no such
    page.
    """
    return kept_of(earlier.read_text() if earlier.exists() else "")


def kept_of(text: str) -> str:
    """Return the section that a person wrote in an earlier page, whose text is ``text``; only its title if
    the page has no such section.
    """
    _, found, words = text.partition(_READ_BY_HAND)
    return f"{_READ_BY_HAND}{words.rstrip()}" if found else _READ_BY_HAND
