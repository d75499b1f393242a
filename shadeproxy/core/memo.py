"""A bounded memory that forgets what was not asked for lately, at the cost of a dict.

Two generations: what is found in the old one moves to the young one; when the young one is full it becomes
the old one, and what was old and not asked for is gone. So between ``capacity`` and twice as much is kept.
"""

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Memo(Generic[Key, Value]):
    """At most ``2 * capacity`` entries."""

    __slots__ = ("_capacity", "_old", "young")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.young: dict[Key, Value] = {}
        """What was put or asked for lately; to be looked into, not to be changed."""
        self._old: dict[Key, Value] = {}

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def get(self, key: Key) -> Value | None:
        """What was put under ``key``, if it is remembered."""
        value = self.young.get(key)
        if value is None and self._old:
            value = self._old.pop(key, None)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: Key, value: Value) -> None:
        """Remember ``value``."""
        if len(self.young) >= self._capacity:
            self._old = self.young
            self.young = {}
        self.young[key] = value

    def clear(self) -> None:
        """Forget everything."""
        self.young, self._old = {}, {}

    def drop(self, key: Key) -> None:
        """Forget ``key``."""
        self.young.pop(key, None)
        self._old.pop(key, None)
