"""Verdicts: the rights that the origin granted to clients, remembered so that a hit is authorised like a
miss.

A verdict is the right that the origin granted: either GET (the origin sent bytes), which includes HEAD, or
HEAD alone. Some origins grant HEAD to clients that cannot read the bytes (SSE-KMS without kms:Decrypt, or a
bucket policy on s3:GetObject).

Verdicts are needed only if some clients have credentials of their own at the origin. Law: a client may read a
cached object only if the origin has granted this to the client's own credentials, at most ``ttl_s`` ago. A
write makes the object's verdicts void, including those that the origin is being asked for. Every call is O(1)
amortised, and memory is bounded.
"""

from collections import OrderedDict

from shadeproxy.core.types import OWN, ObjectRef, Upstream
from shadeproxy.engine.base import Grant

_BUCKET_SLOTS = 1 << 10
_OBJECT_SLOTS = 1 << 16

_Verdict = tuple[float, float, int]
"""The Unix times until which HEAD and GET are granted, and the generation of the bucket at the grant."""

AuthEpoch = tuple[object, int, int]
"""Auth epoch: the ``Verdicts``, and the generations of bucket and object before the origin was asked."""


class Verdicts:
    """Rights of each upstream to each object. Memory is bounded: if there are too many verdicts, those of the
    object with the oldest grant are forgotten.
    """

    def __init__(self, ttl_s: float, capacity: int = 262_144) -> None:
        self._ttl_s = ttl_s
        # Part of every auth epoch made here, so that an auth epoch of another ``Verdicts`` is not valid.
        self._self = object()
        self._capacity = capacity
        self._count = 0
        self._allowed: OrderedDict[ObjectRef, dict[Upstream, _Verdict]] = OrderedDict()
        # Generations of buckets and objects, in tables of fixed size; the hash of a name chooses its entry.
        # If two names share an entry, forgetting one forgets the other too, which costs one more request.
        self._buckets = [0] * _BUCKET_SLOTS
        self._objects = [0] * _OBJECT_SLOTS

    def __len__(self) -> int:
        return self._count

    def begin(self, ref: ObjectRef) -> AuthEpoch:
        """Return the auth epoch of now. Call this before the origin is asked, and pass the result to
        ``allow``.
        """
        return self._self, self._buckets[_bucket_slot(ref)], self._objects[_object_slot(ref)]

    def allow(
        self,
        upstream: Upstream,
        ref: ObjectRef,
        now_s: float,
        epoch: AuthEpoch | None = None,
        *,
        grant: Grant = Grant.GET,
    ) -> None:
        """Record a granted right, unless the object or its bucket was forgotten since ``epoch``."""
        current = self.begin(ref)
        if epoch is not None and epoch != current:
            return
        verdicts = self._allowed.setdefault(ref, {})
        before = verdicts.get(upstream)
        self._count += before is None
        until_s = now_s + self._ttl_s
        if grant is Grant.GET:
            verdicts[upstream] = (until_s, until_s, current[1])
        else:
            # A granted HEAD keeps an earlier right to GET, if the bucket was not forgotten since.
            kept = before[1] if before is not None and before[2] == current[1] else 0.0
            verdicts[upstream] = (until_s, kept, current[1])
        self._allowed.move_to_end(ref)
        while self._count > self._capacity:
            _, evicted = self._allowed.popitem(last=False)
            self._count -= len(evicted)

    def allowed(self, upstream: Upstream, ref: ObjectRef, now_s: float, grant: Grant = Grant.GET) -> bool:
        """Return whether the origin granted ``upstream`` this right to ``ref`` at most ``ttl_s`` ago."""
        return self.until_s(upstream, ref, grant) > now_s

    def until_s(self, upstream: Upstream, ref: ObjectRef, grant: Grant = Grant.GET) -> float:
        """Return the Unix time until which ``upstream`` has this right to ``ref``; 0.0 if it does not have
        it.
        """
        verdict = self._allowed.get(ref, {}).get(upstream)
        if verdict is None:
            return 0.0
        head_until_s, get_until_s, generation = verdict
        if generation != self._buckets[_bucket_slot(ref)]:
            return 0.0
        return get_until_s if grant is Grant.GET else head_until_s

    def forget(self, bucket: str, key: str | None = None, namespace: str = OWN) -> None:
        """Make the verdicts on one object void, or those on a whole bucket (``key`` None)."""
        ref = ObjectRef(bucket, key or "", namespace)
        if key is None:
            # The bucket's verdicts stay in memory until newer ones replace them, but they are not valid any
            # more.
            self._buckets[_bucket_slot(ref)] += 1
            return
        self._objects[_object_slot(ref)] += 1
        self._count -= len(self._allowed.pop(ref, {}))

    def forget_all(self) -> None:
        """Make all verdicts void, including those that the origin is being asked for."""
        self._self = object()
        self._allowed.clear()
        self._count = 0


def _bucket_slot(ref: ObjectRef) -> int:
    return hash((ref.bucket, ref.namespace)) % _BUCKET_SLOTS


def _object_slot(ref: ObjectRef) -> int:
    return hash(ref) % _OBJECT_SLOTS
