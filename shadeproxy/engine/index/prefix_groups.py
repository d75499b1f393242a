"""Prefix groups: sets of pages that are treated alike. The learner learns one table of next reads for each
group, and a purge looks only at groups that can hold keys under its prefix.

A group has a namespace, a bucket and the first segment of a key ("train/imagenet/..." -> "train/"), because
data sets are usually laid out so. Once there are 4,096 groups, all new first segments of a bucket share one
further group, which is made when an object of it is cached.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.identity import GroupName, group_name
from shadeproxy.core.types import OWN, ObjectRef

_MAX_GROUPS = 4096
_UNCACHED = ("", "", OWN)
"""The group of missing objects that have no group of their own. No bucket has this name."""


GroupFlags = NDArray[np.bool_]
"""Some groups, for lookups of many pages: shape (g + 2,), where g is the highest of these groups. The element
of each of them is True. The last element stands for all groups above g, and is False.
"""


def group_flags(groups: list[int]) -> GroupFlags:
    """Return the flags of these groups."""
    flags = np.zeros(max(groups, default=-1) + 2, np.bool_)
    flags[groups] = True
    return flags


class PrefixGroups:
    """Prefix groups as integers 0, 1, 2, ..., one for each (bucket, first key segment, namespace)."""

    def __init__(self) -> None:
        self._ids: dict[GroupName, int] = {}
        self._names: list[GroupName] = []
        # Cached, because each miss asks for the group of an object twice: at the read, and when the fetched
        # page is stored.
        self.of = lru_cache(maxsize=1024)(self._of)
        """Return the group of an object; make the group if it is new."""
        self.of_missing: Callable[[ObjectRef], int] = self.of
        """Return the group of an object that is not cached. Once there are 4,096 groups, make no further one,
        because the object's bucket may not exist, and a client can name any number of buckets.
        """

    def __len__(self) -> int:
        return len(self._names)

    def of_names(self, names: list[GroupName]) -> NDArray[np.int32]:
        """Return the groups with these names, i32[n]; make the groups that are new."""
        return np.fromiter(map(self._of_name, names), np.int32, len(names))

    @property
    def names(self) -> list[GroupName]:
        """Names of all groups, in the order of their integers."""
        return list(self._names)

    def _of(self, ref: ObjectRef) -> int:
        name = group_name(ref)
        group = self._ids.get(name)
        return self._of_name(name) if group is None else group

    def _known(self, ref: ObjectRef) -> int:
        bucket, _, namespace = name = group_name(ref)
        group = self._ids.get(name)
        if group is None:
            group = self._ids.get((bucket, "", namespace))
        return self._of_name(_UNCACHED) if group is None else group

    def _of_name(self, name: GroupName) -> int:
        group = self._ids.get(name)
        if group is None:
            if len(self._names) >= _MAX_GROUPS:
                name = (name[0], "", name[2])
                group = self._ids.get(name)
            if group is None:
                group = self._ids[name] = len(self._names)
                self._names.append(name)
                if len(self._names) >= _MAX_GROUPS:
                    self.of_missing = self._known
        return group

    def candidates(self, bucket: str, prefix: str, namespace: str = OWN) -> list[int]:
        """Return all groups that may hold keys of ``bucket`` under ``prefix``. Some of them may hold no such
        key.
        """
        return [
            group
            for group, (name, head, space) in enumerate(self._names)
            if (name, space) == (bucket, namespace)
            and (not head or head.startswith(prefix) or prefix.startswith(head))
        ]
