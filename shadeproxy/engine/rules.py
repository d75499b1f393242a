"""Rules for buckets and prefixes. A rule says how long cached metadata may answer without the origin, whether
objects are cached, and whether they are pinned.

This module keeps the rules, and judges the age of metadata. It reads no clock: times are arguments. The
caller revalidates.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from fnmatch import fnmatchcase

from shadeproxy.core.types import ObjectRef


class Freshness(StrEnum):
    """When cached metadata is checked with the origin. ``immutable``: never again. ``ttl``: when it is older
    than the TTL; the check runs in the background, and the cache answers meanwhile. ``revalidate``: before
    every answer.
    """

    IMMUTABLE = "immutable"
    TTL = "ttl"
    REVALIDATE = "revalidate"


class Age(Enum):
    """Judgement of cached metadata by a rule, from the time since its last check."""

    FRESH = auto()
    STALE = auto()  # Answer now, and check in the background.
    UNUSABLE = auto()  # Check before answering.


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of ``[[rules]]``. ``bucket`` is a glob; ``prefix`` is taken literally."""

    bucket: str = "*"
    prefix: str = ""
    freshness: Freshness = Freshness.TTL
    ttl_s: float = 3600.0
    cache: bool = True
    pin: bool = False

    def applies(self, ref: ObjectRef) -> bool:
        return ref.key.startswith(self.prefix) and fnmatchcase(ref.bucket, self.bucket)

    def age(self, validated_s: float, now_s: float) -> Age:
        """Return the age at ``now_s`` of metadata that was last checked at ``validated_s`` (both Unix times).

        A ``validated_s`` of 0 means that the metadata must be checked once, whatever the rule is, for
        instance after an unclean start.
        """
        if validated_s <= 0 or self.freshness is Freshness.REVALIDATE:
            return Age.UNUSABLE
        if self.freshness is Freshness.IMMUTABLE or now_s - validated_s < self.ttl_s:
            return Age.FRESH
        return Age.STALE

    def fresh_until_s(self, validated_s: float) -> float:
        """Return the Unix time until which metadata last checked at ``validated_s`` is FRESH."""
        if validated_s <= 0 or self.freshness is Freshness.REVALIDATE:
            return 0.0
        return math.inf if self.freshness is Freshness.IMMUTABLE else validated_s + self.ttl_s


class Rules:
    """Ordered list of rules. The first rule that applies to an object decides. The default rule is the last,
    and applies to all objects.
    """

    def __init__(self, rules: Sequence[Rule] = (), default: Rule | None = None) -> None:
        self._default = default or Rule()
        self.adopt(rules)

    def adopt(self, rules: Sequence[Rule]) -> None:
        """Replace the rules. Callers that remember results of the old rules must forget these results."""
        self._given = tuple(rules)
        self.any_pins = any(rule.pin for rule in self)
        self.all_cached = all(rule.cache for rule in self)
        """True if every object may be cached."""

    def of(self, ref: ObjectRef) -> Rule:
        for rule in self._given:
            if rule.applies(ref):
                return rule
        return self._default

    def __iter__(self) -> Iterator[Rule]:
        """Yield the rules in order; the default rule comes last."""
        yield from self._given
        yield self._default
