"""A bounded cache that forgets entries which were not used lately, and costs hardly more than a dict.

The cache has two generations. An entry that is found in the old generation moves to the young one. When the
young generation is full, it becomes the old one, and the old one before it is dropped. So a full cache has
between ``capacity`` and twice as many entries.
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
        """Entries that were put or used lately. Callers may read this dict, but must not change it."""
        self.old: dict[Key, Value] = {}
        """Entries that ``get`` finds although they are not in ``young``. While this dict is empty, looking
        into ``young`` is enough.
        """

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
        """Keep ``value`` under ``key``, among the young entries."""
        if len(self.young) >= self._capacity:
            self.old = self.young
            self.young = {}
        self.young[key] = value

    def clear(self) -> None:
        """Forget all entries."""
        self.young, self.old = {}, {}

    def drop(self, key: Key) -> None:
        """Forget the entry of ``key``."""
        self.young.pop(key, None)
        self.old.pop(key, None)
