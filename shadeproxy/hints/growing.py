"""Samples of a job without a dataset: objects get ids in the order in which they are scored.

A job that scores more than ``max_objects`` objects must register a dataset, because the columns of a dataset
take a fifth of the memory of a growing set. Call the methods on the event loop only.
"""

from array import array

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import InvalidRequest
from shadeproxy.core.types import OWN, ObjectRef
from shadeproxy.hints.datasets import Dataset, Hashes, Ids
from shadeproxy.hints.manifest import MAX_KEY_BYTES

MAX_OBJECTS = 262_144
MAX_BUCKET_CHARS = 255


class GrowingSet:
    """Maps object hashes to ids, which number the objects in the order in which they are added. It keeps no
    keys.
    """

    def __init__(self, name: str, *, max_objects: int = MAX_OBJECTS) -> None:
        self.name = name
        self._max_objects = max_objects
        self._ids: dict[int, int] = {}
        self._hashes = array("Q")

    @property
    def count(self) -> int:
        return len(self._hashes)

    @property
    def hashes(self) -> Hashes:
        """A copy of the hashes in id order: u64[n]."""
        return np.array(self._hashes, dtype=np.uint64)

    def add(self, hashes: list[int]) -> Ids:
        """Return the ids of ``hashes``, adding unknown hashes. Raises InvalidRequest, and adds none, if the
        set would be too large.
        """
        unknown = self.unknown(hashes)
        if self.count + len(unknown) > self._max_objects:
            raise InvalidRequest(
                f"a job without a dataset may score at most {self._max_objects} objects",
                hint="register the objects as a dataset (PUT /v1/datasets/NAME) and name it in PUT /v1/jobs",
            )
        for hashed in unknown:
            self._ids[hashed] = self.count
            self._hashes.append(hashed)
        return np.array([self._ids[hashed] for hashed in hashes], dtype=np.int64)

    def unknown(self, hashes: list[int]) -> dict[int, None]:
        """Return those of ``hashes`` that the set lacks, each once, in their order."""
        return {hashed: None for hashed in hashes if hashed not in self._ids}

    def find(self, hashes: Hashes) -> Ids:
        """Return the id of each hash, -1 where unknown: i64[k]."""
        get = self._ids.get
        return np.array([get(hashed, -1) for hashed in hashes.tolist()], dtype=np.int64)

    def units_of(self, hashes: Hashes, _numbers: NDArray[np.uint32]) -> Ids:
        """Return the id of each page's object, as ``Dataset.units_of`` returns units. A growing set knows no
        lengths, so all pages of an object are one unit.
        """
        return self.find(hashes)


Space = Dataset | GrowingSet


def title_of(space: Space) -> str:
    """Return the name of a job's samples for an error text."""
    if isinstance(space, GrowingSet):
        return f"the scored objects of {space.name.removeprefix('job:')!r}"
    return f"dataset {space.name!r}"


def namespace_of(space: Space) -> str:
    """Return the namespace of a job's samples: that of its dataset, or the proxy's own."""
    return space.entries.namespace if isinstance(space, Dataset) else OWN


def ref_of(path: str, namespace: str) -> ObjectRef:
    """Return the object named by ``path``, "bucket/key". Raises InvalidRequest."""
    bucket, slash, key = path.partition("/")
    if not bucket or not slash or not key:
        raise InvalidRequest(f"{path[:80]!r} is not BUCKET/KEY", hint='write keys as "bucket/key"')
    if not path.isascii() and any("\ud800" <= char <= "\udfff" for char in path):
        raise InvalidRequest(f"{path[:80]!r} is not valid Unicode", hint='write keys as "bucket/key"')
    if len(bucket) > MAX_BUCKET_CHARS or len(key) > MAX_KEY_BYTES or len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidRequest(
            f"{path[:80]!r}... is too long",
            hint=f"a bucket has at most {MAX_BUCKET_CHARS} characters, a key {MAX_KEY_BYTES} bytes of UTF-8",
        )
    return ObjectRef(bucket, key, namespace)
