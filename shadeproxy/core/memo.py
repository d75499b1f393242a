"""A bounded memory that forgets what was not asked for lately, at the cost of a dict.

Two generations: what is found in the old one moves to the young one; when the young one is full it becomes
the old one, and what was old and not asked for is gone. So between ``capacity`` and twice as much is kept.
"""

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Memo(Generic[Key, Value]):
    """At most ``2 * capacity`` entries."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._young: dict[Key, Value] = {}
        self._old: dict[Key, Value] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: Key) -> Value | None:
        """What was put under ``key``, if it is remembered."""
        value = self._young.get(key)
        if value is None and self._old:
            value = self._old.pop(key, None)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: Key, value: Value) -> None:
        """Remember ``value``."""
        if len(self._young) >= self._capacity:
            self._old = self._young
            self._young = {}
        self._young[key] = value

    def drop(self, key: Key) -> None:
        """Forget ``key``."""
        self._young.pop(key, None)
        self._old.pop(key, None)
