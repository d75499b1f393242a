"""Prefix groups: sets of pages. The next reads of a group's pages are learnt together. A purge looks only at
groups that can hold keys under its prefix.

A group is a bucket of a namespace plus the first segment of the key ("train/imagenet/..." -> "train/"), which
is how datasets are laid out. The number of groups is bounded: above the bound, the new prefixes of a bucket
share one group.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.identity import GroupName, group_name
from shadeproxy.core.types import OWN, ObjectRef

_MAX_GROUPS = 4096


class PrefixGroups:
    """Dense integer ids for (bucket, first key segment, namespace)."""

    def __init__(self) -> None:
        self._ids: dict[GroupName, int] = {}
        self._names: list[GroupName] = []
        # Cached, because a miss and the page that is fetched for it ask for the same group.
        self.of = lru_cache(maxsize=1024)(self._of)
        """Return the group of an object. Make the group if it is new."""

    def __len__(self) -> int:
        return len(self._names)

    def of_names(self, names: list[GroupName]) -> NDArray[np.int32]:
        """Return the groups of ``names``. Make groups for new names."""
        return np.fromiter(map(self._of_name, names), np.int32, len(names))

    @property
    def names(self) -> list[GroupName]:
        """Names of the groups. A group is the index of its name."""
        return list(self._names)

    def _of(self, ref: ObjectRef) -> int:
        name = group_name(ref)
        group = self._ids.get(name)
        return self._of_name(name) if group is None else group

    def _of_name(self, name: GroupName) -> int:
        group = self._ids.get(name)
        if group is None:
            if len(self._names) >= _MAX_GROUPS:
                name = (name[0], "", name[2])
                group = self._ids.get(name)
            if group is None:
                group = self._ids[name] = len(self._names)
                self._names.append(name)
        return group

    def candidates(self, bucket: str, prefix: str, namespace: str = OWN) -> list[int]:
        """Return the groups that may hold keys of ``bucket`` under ``prefix``. No group that holds such keys
        is left out, but groups without such keys may be included.
        """
        return [
            group
            for group, (name, head, space) in enumerate(self._names)
            if (name, space) == (bucket, namespace)
            and (not head or head.startswith(prefix) or prefix.startswith(head))
        ]
