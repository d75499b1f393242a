"""An ``Ownership`` whose answers a test sets, and an origin whose HEADs a test holds."""

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.core.types import ObjectMeta, ObjectRef
from shadeproxy.engine.ownership import Began, Standing
from shadeproxy.origin.memory import MemoryOrigin


def all_kept(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return True for every object: the new trust epoch takes the trust from none of them."""
    return np.ones(len(hashes), np.bool_)


class SetOwnership:
    """An ``Ownership`` in which this proxy owns all objects, unless a test says otherwise.

    ``lost``: objects that this proxy does not own at the moment, although it must execute their writes.
    ``elsewhere``: objects whose writes another proxy executes.
    ``waited``: the arguments of the calls of ``wait_until_mine``.
    ``buckets``: the arguments of the calls of ``distrust_bucket``, which raise ``refusal`` if that is set.
    """

    def __init__(self) -> None:
        self.lease_s = inf
        self.epoch = 0
        self.lost: set[ObjectRef] = set()
        self.elsewhere: set[ObjectRef] = set()
        self.waited: list[list[ObjectRef]] = []
        self.buckets: list[tuple[str, str]] = []
        self.refusal: ShadeProxyError | None = None
        self._standings: dict[ObjectRef, Standing] = {}
        self._since: dict[ObjectRef, int] = {}
        self._instant = 0

    def set(self, ref: ObjectRef, standing: Standing) -> None:
        """Change the standing of an object as time does, without a new trust epoch."""
        self._standings[ref], self._since[ref] = standing, self._now()

    def standing(self, ref: ObjectRef) -> Standing:
        return self._standings.get(ref, Standing.OWN)

    def may_store(self, ref: ObjectRef) -> bool:
        return self.standing(ref) is not Standing.FOREIGN

    def own_for_s(self, ref: ObjectRef) -> float:
        return self.lease_s if self.standing(ref) is Standing.OWN else 0.0

    def begin(self) -> Began:
        return Began(self.epoch, self._now())

    def trusts(self, ref: ObjectRef, began: Began) -> bool:
        is_own = self.standing(ref) is Standing.OWN and self._since.get(ref, -1) < began.at_s
        return is_own and began.epoch == self.epoch

    def mine(self, ref: ObjectRef) -> bool:
        return ref not in self.lost and ref not in self.elsewhere

    def writes_here(self, ref: ObjectRef) -> bool:
        return ref not in self.elsewhere

    async def wait_until_mine(self, refs: Sequence[ObjectRef]) -> bool:
        self.waited.append(list(refs))
        return all(map(self.mine, refs))

    async def distrust_bucket(self, bucket: str, namespace: str) -> None:
        self.buckets.append((bucket, namespace))
        if self.refusal is not None:
            raise self.refusal

    def _now(self) -> int:
        self._instant += 1
        return self._instant


class HeldOrigin(MemoryOrigin):
    """Takes the metadata when a HEAD comes, but answers the HEAD only when ``go`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.asked = asyncio.Event()
        self.holds = True

    async def head(self, ref: ObjectRef, **options: Any) -> ObjectMeta:
        meta = await super().head(ref, **options)
        if self.holds:
            self.asked.set()
            await self.go.wait()
        return meta
