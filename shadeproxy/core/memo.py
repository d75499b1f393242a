"""A bounded cache that forgets entries not used lately, and costs no more than a dict.

The cache has two generations. An entry found in the old generation moves to the young one. A full young
generation becomes the old one, and the previous old one is dropped. So a full cache holds between
``capacity`` entries and twice as many.
"""

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Memo(Generic[Key, Value]):
    """A cache of at most ``2 * capacity`` entries."""

    __slots__ = ("_capacity", "old", "young")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.young: dict[Key, Value] = {}
        """Entries that were put or used lately. Callers may read it but must not change it."""
        self.old: dict[Key, Value] = {}
        """Entries that ``get`` may find beside ``young``. While it is empty, ``get`` need not be called."""

    def __len__(self) -> int:
        return len(self.young) + len(self.old)

    def get(self, key: Key) -> Value | None:
        """Return the value of ``key``, or None if it was forgotten."""
        value = self.young.get(key)
        if value is None and self.old:
            value = self.old.pop(key, None)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: Key, value: Value) -> None:
        """Keep ``value`` under ``key``."""
        if len(self.young) >= self._capacity:
            self.old = self.young
            self.young = {}
        self.young[key] = value

    def clear(self) -> None:
        """Forget everything."""
        self.young, self.old = {}, {}

    def drop(self, key: Key) -> None:
        """Forget ``key``."""
        self.young.pop(key, None)
        self.old.pop(key, None)
