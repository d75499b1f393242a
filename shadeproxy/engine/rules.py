"""Rules per bucket and prefix: how long cached metadata may answer for the origin, and what is pinned.

Pure data and one decision. The clock comes in as an argument; who revalidates is not decided here.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from fnmatch import fnmatchcase

from shadeproxy.core.types import ObjectRef


class Freshness(StrEnum):
    """``immutable``: never asked again. ``ttl``: asked in the background once older than the TTL, and
    answered from the cache meanwhile. ``revalidate``: asked before every answer.
    """

    IMMUTABLE = "immutable"
    TTL = "ttl"
    REVALIDATE = "revalidate"


class Age(Enum):
    """What a rule says of metadata validated at some time."""

    FRESH = auto()
    STALE = auto()  # answer now, check in the background
    UNUSABLE = auto()  # check before answering


@dataclass(frozen=True, slots=True)
class Rule:
    """One ``[[rules]]`` entry. ``bucket`` is a glob; ``prefix`` is literal."""

    bucket: str = "*"
    prefix: str = ""
    freshness: Freshness = Freshness.TTL
    ttl_s: float = 3600.0
    cache: bool = True
    pin: bool = False

    def applies(self, ref: ObjectRef) -> bool:
        return ref.key.startswith(self.prefix) and fnmatchcase(ref.bucket, self.bucket)

    def age(self, validated_s: float, now_s: float) -> Age:
        """Whether metadata last validated at ``validated_s`` may be used at ``now_s``.

        ``validated_s`` 0 means "never since an unclean start": checked once under every rule.
        """
        if validated_s <= 0 or self.freshness is Freshness.REVALIDATE:
            return Age.UNUSABLE
        if self.freshness is Freshness.IMMUTABLE or now_s - validated_s < self.ttl_s:
            return Age.FRESH
        return Age.STALE

    def fresh_until_s(self, validated_s: float) -> float:
        """Until when ``age`` says FRESH (Unix time)."""
        if validated_s <= 0 or self.freshness is Freshness.REVALIDATE:
            return 0.0
        return math.inf if self.freshness is Freshness.IMMUTABLE else validated_s + self.ttl_s


class Rules:
    """An ordered rule list; the first rule that applies decides, the default closes the list."""

    def __init__(self, rules: Sequence[Rule] = (), default: Rule | None = None) -> None:
        self._default = default or Rule()
        self.adopt(rules)

    def adopt(self, rules: Sequence[Rule]) -> None:
        """Go by ``rules`` from now on. Who remembers what the old ones said must be told to forget it."""
        self._given = tuple(rules)
        self.any_pins = any(rule.pin for rule in self)

    def of(self, ref: ObjectRef) -> Rule:
        for rule in self._given:
            if rule.applies(ref):
                return rule
        return self._default

    def __iter__(self) -> Iterator[Rule]:
        """In the order in which they are asked; the default is the last."""
        yield from self._given
        yield self._default
