"""Reads objects through the proxy, and from the origin while the proxy does not answer. Registers datasets
and jobs. The URL of the control listener is enough to find the proxy's S3 listener.

Law: a read succeeds while the proxy or the origin answers, and the caller need not know which of the two did.
A proxy that refuses this client, for example because of a wrong token, counts as one that does not answer.
A Client holds only settings, like its base class ``ControlSession``, so it can be forked and pickled.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from shadeproxy_sdk.address import in_url
from shadeproxy_sdk.batch_buffer import UNKNOWN, Allocate, BatchBuffer, Data, check_rows, heap
from shadeproxy_sdk.bulk import BulkReads, parts
from shadeproxy_sdk.bulk_calls import Request
from shadeproxy_sdk.circuit_breaker import BreakerDecision
from shadeproxy_sdk.control import (
    HINT_MEMORY_FULL,
    REGISTER_TIMEOUT_S,
    Control,
    ControlSession,
    probe_timeout_s,
    read_json,
)
from shadeproxy_sdk.errors import Busy, ConfigError, ControlError, ReadError, Unreachable, unanswered
from shadeproxy_sdk.job import Job
from shadeproxy_sdk.job_settings import check_delivery, check_needs, check_ranks
from shadeproxy_sdk.manifest import Entry, Manifest, check_entry
from shadeproxy_sdk.names import check_name, check_prefix, dataset_name
from shadeproxy_sdk.origin import Credentials, Origin
from shadeproxy_sdk.shared import Once
from shadeproxy_sdk.tag import JobTag
from shadeproxy_sdk.transfer import ListedObject, S3Side

Value = TypeVar("Value")


class Client(ControlSession):
    """The access to a proxy, and to the origin from which objects are read while the proxy does not answer.

    ``url``: address of the control listener. ``token``: its bearer token. ``s3_endpoint``: address of the S3
    listener, needed if this host cannot reach the address that ``GET /v1/info`` names. ``credentials``: keys
    that sign reads from the proxy (``[[auth.clients]]``). ``origin``: the origin to fall back to; by default
    the one that the AWS environment variables name. ``timeout_s``: most seconds of each wait for bytes, and
    of a read's search for a server that answers. ``retry_s``: seconds before a proxy that failed is tried
    again; this pause doubles up to a minute. ``concurrency``: most reads at a time in each process. Raises
    ConfigError for invalid arguments.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        s3_endpoint: str | None = None,
        credentials: Credentials | None = None,
        origin: Origin | None = None,
        timeout_s: float = 30.0,
        retry_s: float = 1.0,
        concurrency: int = 16,
    ) -> None:
        _check_type("credentials", credentials, Credentials, "Credentials(access_key, ...)")
        _check_type("origin", origin, Origin, "Origin(endpoint_url=...)")
        control = Control(url, token)
        super().__init__(control, timeout_s=timeout_s, retry_s=retry_s, concurrency=concurrency)
        self._credentials = credentials
        self._s3 = self._s3_side(s3_endpoint) if s3_endpoint else None
        self._origin = origin if origin is not None else Origin.from_environment()
        self._origin_once = Once(covers=self.once)

    # ------------------------------------------------------------------ reading

    def read(self, entry: Entry, tag: JobTag | None = None) -> bytes:
        """Return all bytes of one sample. Thread-safe.

        Ask the proxy. If it does not answer or refuses this client, ask the origin, and log a warning once
        for the whole run. Raises ReadError when the sample does not exist or may not be read, or when no
        server answered for ``timeout_s``; ControlError when the proxy refuses this client and no origin is
        known; ConfigError if ``entry`` is neither an object nor a part of one.
        """
        check_entry(entry)
        return self._read_by(time.monotonic() + self.timeout_s, entry, tag)

    def _read_by(self, deadline: float, entry: Entry, tag: JobTag | None) -> bytes:
        """Return the bytes of one sample as ``read`` does, but try proxy and origin until ``deadline``
        only.
        """
        headers = tag.headers() if tag is not None else {}
        return self._ask(str(entry), lambda side, own: side.read(entry, headers if own else {}), deadline)

    def listing(self, bucket: str, prefix: str = "") -> list[ListedObject]:
        """Return the objects under ``prefix`` in key order, with their sizes. Nothing is registered. Raises
        like ``read``.
        """
        check_prefix(bucket, prefix)
        what, deadline = f"s3://{bucket}/{prefix}", time.monotonic() + self.timeout_s
        return self._ask(what, lambda side, _: list(side.listing(bucket, prefix)), deadline)

    def _ask(self, what: str, call: Callable[[S3Side, bool], Value], deadline: float) -> Value:
        """Return the result of ``call`` at the proxy's S3 listener (second argument True), or at the origin
        (False) if the proxy does not answer.
        """
        breaker = self.connections.s3_breaker
        while True:
            decision, reason = breaker.ask(), breaker.reason
            if decision is not BreakerDecision.REFUSE:
                try:
                    return self._ask_proxy(call, decision)
                except (Unreachable, Busy) as error:
                    reason = str(error)
            origin = self._fallback()
            if origin is not None:
                self._warn(reason, origin)
                return self._ask_origin(origin, what, call, reason)
            if time.monotonic() >= deadline:
                raise self._unanswered(what, reason)
            breaker.hurry(self._retry_s)
            time.sleep(min(self._retry_s, max(deadline - time.monotonic(), 0.0)))

    def read_many(self, manifest: Manifest, ids: Sequence[int]) -> list[bytes]:
        """Return the bytes of many samples, in the order of ``ids``, in few calls. Thread-safe.

        Raises IndexError, and ReadError like ``read``.
        """
        return [bytes(data) for data in self.views(manifest, ids)]

    def views(self, manifest: Manifest, ids: Sequence[int]) -> list[Data]:
        """Return samples as ``read_many`` does, but as views of the memory that received them, not copies."""
        return [data for part in parts(ids) for data in self.fetch(manifest, part).finish()]

    def read_into(self, manifest: Manifest, ids: Sequence[int], out: NDArray[np.uint8]) -> None:
        """Read samples that have one length into the rows of ``out``: u8[len(ids), length], C-contiguous,
        writable.

        If the cache is warm and on this host, each byte is copied once, from the cache into ``out``. Raises
        ConfigError if ``out`` does not fit, IndexError for an unknown id, and ReadError like ``read`` or when
        a sample has another length. After an error the contents of ``out`` are undefined. Thread-safe.
        """
        check_rows(out, len(ids))
        length, row = out.shape[1], 0
        for part in parts(ids):
            batch = BatchBuffer(part)
            batch.lay_in(out[row : row + len(part)].reshape(-1).data, length)
            for position, data in enumerate(self._fill(manifest, part, batch, heap).finish()):
                if len(data) != length:
                    raise ReadError(
                        f"{manifest[part[position]]} has {len(data)} bytes, but the rows of out have "
                        f"{length}: read_into is for samples of one length, read_many for others"
                    )
            row += len(part)

    def fetch(self, manifest: Manifest, ids: Sequence[int], allocate: Allocate = heap) -> BatchBuffer:
        """Fetch up to MOST_ITEMS samples, each one complete. Samples of known length come into memory from
        ``allocate``.

        Ways of reading are tried in this order, and each brings as many of the missing samples as it can:
        locate calls, batch calls, one GET a sample from the proxy, one GET a sample from the origin. Raises
        IndexError, and ReadError like ``read``.
        """
        return self._fill(manifest, ids, BatchBuffer(ids), allocate)

    def _fill(
        self, manifest: Manifest, ids: Sequence[int], batch: BatchBuffer, allocate: Allocate
    ) -> BatchBuffer:
        request, connections = Request(manifest, ids, batch), self.connections
        for position in [i for i, length in enumerate(request.lengths) if length == 0]:
            batch.put(position, b"")
        deadline = time.monotonic() + self.timeout_s
        hung = BulkReads(connections, self._control, self.timeout_s).read(request, allocate)
        if hung is None:
            deadline = time.monotonic() + self.timeout_s
        elif connections.s3_breaker.is_open:
            # An earlier read found that the S3 listener hangs too. Restart its pause, so that no read waits
            # for both listeners.
            connections.s3_breaker.failed(BreakerDecision.PROBE, hung)
        elif missing := batch.missing():
            # Let one read with a short timeout find out whether the proxy hangs. Otherwise every read would
            # wait for the whole timeout.
            connections.s3_breaker.failed(BreakerDecision.ALLOW, hung)
            connections.s3_breaker.hurry(0.0)
            batch.put(missing[0], self._read_by(deadline, manifest[ids[missing[0]]], manifest.tag))
        submit = connections.executor.submit
        fetches = {
            position: submit(self._read_by, deadline, manifest[ids[position]], manifest.tag)
            for position in batch.missing()
        }
        try:
            for position, fetch in fetches.items():
                batch.put(position, fetch.result())
        finally:
            for fetch in fetches.values():
                fetch.cancel()
        for length, data in zip(request.lengths, batch.views, strict=True):
            if length == UNKNOWN and data is not None:
                manifest.guess.seen(len(data))
        return batch

    def _ask_proxy(self, call: Callable[[S3Side, bool], Value], decision: BreakerDecision) -> Value:
        breaker, timeout_s = self.connections.s3_breaker, probe_timeout_s(decision, self.timeout_s)
        try:
            value = call(S3Side(self.connections, self._find_s3(timeout_s), timeout_s), True)
        except Unreachable as error:
            breaker.failed(decision, str(error))
            raise
        except (Busy, ReadError, ControlError):
            breaker.succeeded()
            raise
        breaker.succeeded()
        return value

    def _ask_origin(
        self, origin: Origin, what: str, call: Callable[[S3Side, bool], Value], proxy_reason: str
    ) -> Value:
        deadline, pause_s = time.monotonic() + self.timeout_s, 0.1
        while True:
            try:
                return call(S3Side(self.connections, origin, self.timeout_s), False)
            except (Unreachable, Busy) as error:
                if time.monotonic() + pause_s >= deadline:
                    raise self._unanswered(what, proxy_reason, origin, str(error)) from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 2.0)

    def _find_s3(self, timeout_s: float) -> Origin:
        """Return the S3 listener of the proxy, which /v1/info names. Raises Unreachable. If no
        origin is known, raises ControlError if the proxy refuses this client, and ConfigError if /v1/info
        names no listener.
        """
        if self._s3 is None:
            try:
                answer = self.call("GET", "/v1/info", timeout_s=timeout_s)
            except ControlError as error:
                if error.status >= 500:
                    raise Unreachable(str(error)) from None
                if self._fallback() is None:
                    raise
                raise Unreachable(f"it refuses this client: {error}") from None
            info = read_json(answer, self._control.url)
            endpoint = info.get("s3_endpoint")
            if endpoint is None and "version" in info:
                # A starting proxy opens its control listener first.
                raise Unreachable("it is starting: its /v1/info names no s3_endpoint yet")
            if not isinstance(endpoint, str):
                if self._fallback() is not None:
                    raise Unreachable("its /v1/info names no s3_endpoint: give Client(s3_endpoint=...)")
                raise ConfigError(
                    f"{self._control.url}/v1/info names no s3_endpoint: give Client(s3_endpoint=...)"
                )
            self._s3 = self._s3_side(endpoint)
        return self._s3

    def _s3_side(self, endpoint: str) -> Origin:
        parts = urlsplit(Origin(endpoint).endpoint_url)  # Origin refuses what is no address.
        if parts.hostname in {"0.0.0.0", "::"}:  # noqa: S104 (compared with, not bound to)
            # The proxy listens on all addresses of its host, so use the host in the control URL.
            endpoint = f"{parts.scheme}://{in_url(self._control.host)}:{parts.port}"
        keys = self._credentials
        if keys is None:
            return Origin(endpoint)
        return Origin(endpoint, "us-east-1", keys.access_key, keys.secret_key, keys.session_token)

    def _fallback(self) -> Origin | None:
        """Return the origin to fall back to; None if none is known, or if the AWS variables name the proxy
        itself.
        """
        if self._origin is None or self._s3 is None or self._origin.endpoint_url != self._s3.endpoint_url:
            return self._origin
        return None

    def _warn(self, reason: str, origin: Origin) -> None:
        self._origin_once.warn(
            f"The proxy at {self._control.url} does not answer ({reason}): reading from the origin "
            f"{origin.endpoint_url} and trying the proxy again every now and then"
        )

    def _unanswered(
        self, what: str, proxy_reason: str, origin: Origin | None = None, origin_reason: str = ""
    ) -> ReadError:
        second = None if origin is None else f"{origin.endpoint_url} does not either ({origin_reason})"
        return unanswered(what, f"{self._control.url} does not answer ({proxy_reason})", second)

    # ------------------------------------------------------------------ datasets and jobs

    def manifest(self, *, bucket: str, prefix: str = "", name: str | None = None) -> Manifest:
        """Return the objects under ``prefix``, in key order, as a dataset. The proxy lists and registers the
        objects; if it does not answer, the origin lists them.

        Raises ControlError when the proxy refuses, ReadError when no server answers, and ConfigError when
        there are no objects.
        """
        check_prefix(bucket, prefix)
        chosen = check_name(name, "dataset") if name else dataset_name(bucket, prefix)
        breaker = self.connections.control_breaker
        if self._fallback() is None:
            breaker.hurry(0.0)  # No other server can list the objects.
        decision, reason = breaker.ask(), breaker.reason
        if decision is not BreakerDecision.REFUSE:
            try:
                return self._register_prefix(chosen, bucket, prefix)
            except (Unreachable, ControlError) as error:
                if isinstance(error, ControlError) and error.status < 500:
                    breaker.succeeded()
                    raise
                reason = str(error)
                breaker.failed(decision, reason)
        origin = self._fallback()
        if origin is None:
            raise self._unanswered(f"s3://{bucket}/{prefix}", reason)
        self._warn(reason, origin)
        try:
            found = S3Side(self.connections, origin, self.timeout_s).listing(bucket, prefix)
            return Manifest.from_entries(chosen, (Entry(bucket, key) for key, _ in found))
        except (Unreachable, Busy) as error:
            raise self._unanswered(f"s3://{bucket}/{prefix}", reason, origin, str(error)) from None

    def _register_prefix(self, name: str, bucket: str, prefix: str) -> Manifest:
        # Listing may take minutes. So first see whether the proxy answers at all: a proxy that hangs then
        # costs only ``timeout_s``. Workers inherit the address that this answer names.
        answer = self.call("GET", "/v1/info")
        with suppress(ConfigError):
            endpoint = read_json(answer, self._control.url).get("s3_endpoint")
            if self._s3 is None and isinstance(endpoint, str):
                self._s3 = self._s3_side(endpoint)
        try:
            name, answer = self.put_prefix(name, {"bucket": bucket, "prefix": prefix})
        except ControlError as error:
            if error.status != HINT_MEMORY_FULL:
                raise
            self.connections.control_breaker.succeeded()
            self.once.warn(f"{error}. Training goes on, and reads these objects by their keys")
            return Manifest.from_entries(
                name, (Entry(bucket, key) for key, _ in self.listing(bucket, prefix))
            )
        path, told = f"/v1/datasets/{quote(name)}", read_json(answer, self._control.url)
        lines = self.call("GET", f"{path}?format=jsonl", timeout_s=REGISTER_TIMEOUT_S)
        self.connections.control_breaker.succeeded()
        manifest = Manifest.from_jsonl(name, lines.body, bucket=bucket)
        if manifest.digest != told.get("digest"):
            raise ControlError(
                409, "Conflict", f"dataset {name!r} changed while read: two runs register it differently"
            )
        manifest.registered = manifest.digest
        return manifest

    def job(
        self,
        name: str,
        *,
        dataset: Manifest,
        rank: int = 0,
        world_size: int = 1,
        weight: float = 1.0,
        needs: Mapping[str, Any] | None = None,
        interval_s: float = 1.0,
        queue_batches: int = 1024,
        resume_scores: bool = False,
    ) -> Job:
        """Register a training run over ``dataset``. From now on, reads of ``dataset`` carry the job's name.

        ``weight``: the job's importance beside other jobs; a larger one gets a larger share of the cache.
        ``needs``: how fast the run must be beside other jobs: one of {"slowdown": 1.1}, {"samples_per_s":
        400}, {"deadline_s": a Unix time, "epochs": 90} and {"best_effort": True}; docs/protocol.md explains
        these. If the proxy cannot keep the need, a warning says so, and the run goes on without a need.
        ``interval_s``: seconds between deliveries of scores and progress. ``queue_batches``: number of
        reports that may wait; if there are more, the oldest is dropped. ``resume_scores``: True lets draws
        also use scores of earlier runs. If the proxy does not answer, the job is registered later. Raises
        ConfigError, ControlError.
        """
        check_name(name, "job")
        check_ranks(rank, world_size)
        check_delivery(weight, interval_s, queue_batches)
        if not isinstance(dataset, Manifest):
            raise ConfigError(
                f"dataset is a {type(dataset).__name__}: give a Manifest, as S3Dataset(...).manifest"
            )
        return Job(
            self,
            name,
            dataset,
            rank=int(rank),
            world_size=int(world_size),
            asks={"weight": float(weight), **check_needs(needs)},
            interval_s=interval_s,
            queue_batches=queue_batches,
            resume_scores=resume_scores,
        )


def _check_type(name: str, value: Any, wanted: type, example: str) -> None:
    """Raise ConfigError unless ``value`` is None or of the type ``wanted``. The error does not name the
    value, because that may be a secret.
    """
    if value is not None and not isinstance(value, wanted):
        raise ConfigError(f"{name} is a {type(value).__name__}: give {example}")
