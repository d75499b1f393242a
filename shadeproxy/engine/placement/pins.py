"""Pins: prefixes that a control call pinned, and rules of the configuration with ``pin = true``.

This module only keeps the pins. It does not know which pages are resident, and a hit never calls it.
"""

from fnmatch import fnmatchcase
from typing import NamedTuple

from shadeproxy.core.identity import object_hash
from shadeproxy.core.types import OWN, ObjectRef
from shadeproxy.engine.rules import Rule, Rules
from shadeproxy.hints.order.share import OwnedShare

PINNED_SHARE = 0.9
"""Largest share of each tier that pinned pages may take. The rest stays a cache for all other pages."""

MOST_PINS = 256


class Prefix(NamedTuple):
    """A prefix: the objects of ``bucket`` whose keys start with ``prefix``, in one namespace."""

    bucket: str
    prefix: str
    namespace: str = OWN


class PinnedPrefix(NamedTuple):
    """A prefix that a control call pinned at ``since_s`` (Unix time): every object of ``bucket`` whose key
    starts with ``prefix``.
    """

    bucket: str
    prefix: str
    since_s: float
    namespace: str = OWN

    @property
    def place(self) -> Prefix:
        return Prefix(self.bucket, self.prefix, self.namespace)


class Pins:
    """All pins: those of control calls and those of ``rules``. Call ``changed`` when ``rules`` change."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._pins: dict[Prefix, PinnedPrefix] = {}
        self._prefixes: dict[tuple[str, str], tuple[str, ...]] = {}  # By bucket and namespace.
        self.share: OwnedShare | None = None
        """The objects that this proxy caches; None: all objects. In a cluster, another proxy may cache an
        object now that this one cached before: pages of such an object are not kept, even if a pin names it.
        """
        self.version = 0
        """A number that grows with every change."""

    @property
    def any(self) -> bool:
        """True if anything is pinned."""
        return bool(self._pins) or self._rules.any_pins

    # ------------------------------------------------------------------ changes

    def add(self, pin: PinnedPrefix) -> None:
        """Pin a prefix. If it is pinned already, its ``since_s`` stays."""
        self._pins.setdefault(pin.place, pin)
        self.changed()

    def remove(self, bucket: str, prefix: str, namespace: str = OWN) -> bool:
        """Unpin a prefix. Return whether a call had pinned it."""
        removed = self._pins.pop(Prefix(bucket, prefix, namespace), None) is not None
        self.changed()
        return removed

    def changed(self) -> None:
        """Note that rules, prefixes or the share have changed: raise ``version``."""
        self.version += 1
        by_bucket: dict[tuple[str, str], list[str]] = {}
        for bucket, prefix, namespace in self._pins:
            by_bucket.setdefault((bucket, namespace), []).append(prefix)
        self._prefixes = {bucket: tuple(prefixes) for bucket, prefixes in by_bucket.items()}

    # ------------------------------------------------------------------ questions

    def __len__(self) -> int:
        return len(self._pins)

    def __contains__(self, place: Prefix) -> bool:
        return place in self._pins

    def by_call(self) -> list[PinnedPrefix]:
        """Return the prefixes that calls pinned, sorted by bucket and prefix."""
        return sorted(self._pins.values())

    def by_rule(self) -> list[tuple[int, Rule]]:
        """Return the rules that pin, each with its position in the configuration."""
        return [(place, rule) for place, rule in enumerate(self._rules) if rule.pin]

    def rule_over(self, bucket: str, prefix: str) -> tuple[int, Rule] | None:
        """Return the rule that pins the key ``prefix``, with its position in the configuration; None if no
        rule pins this key.
        """
        ref = ObjectRef(bucket, prefix, OWN)  # A rule holds in every namespace.
        decisive = next((place, rule) for place, rule in enumerate(self._rules) if rule.applies(ref))
        return decisive if decisive[1].pin else None

    def covers(self, ref: ObjectRef) -> bool:
        """Return whether an object is pinned and this proxy caches it."""
        return self.names(ref) and (self.share is None or self.share.owns_one(object_hash(ref)))

    def names(self, ref: ObjectRef) -> bool:
        """Return whether a pin names an object, at whichever proxy of a cluster caches it."""
        prefixes = self._prefixes.get((ref.bucket, ref.namespace)) if self._prefixes else None
        if prefixes is not None and ref.key.startswith(prefixes):
            return True
        return self._rules.any_pins and self._rules.of(ref).pin

    def covers_group(self, bucket: str, head: str, namespace: str = OWN) -> bool | None:
        """Return whether the objects of ``bucket`` whose keys start with ``head`` are pinned. True: all are;
        False: none is; None: it depends on the rest of the key.
        """
        prefixes = self._prefixes.get((bucket, namespace), ())
        if head.startswith(prefixes):
            return True
        by_call = None if any(prefix.startswith(head) for prefix in prefixes) else False
        by_rule = self._rule_of_group(bucket, head)
        return by_call if by_rule is False else by_rule

    def _rule_of_group(self, bucket: str, head: str) -> bool | None:
        if not self._rules.any_pins:
            return False
        verdicts: set[bool] = set()  # Values of ``pin`` in the rules that decide on some of these keys.
        for rule in self._rules:
            if not fnmatchcase(bucket, rule.bucket):
                continue
            if head.startswith(rule.prefix):
                verdicts.add(rule.pin)
                break
            if rule.prefix.startswith(head):
                verdicts.add(rule.pin)
        return verdicts.pop() if len(verdicts) == 1 else None
