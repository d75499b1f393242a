"""Makes a job's calls to the proxy. The job is registered before its first call, and again if the proxy has
forgotten it.

Training never ends because of the proxy: the proxy may be away, may restart, or may forget an expired job.
Only a refusal at the start is raised, because the user can correct that mistake. A name that is taken is no
mistake: a killed run keeps its names until it expires, and the next run uses other names instead of waiting
for that. If a run is silent for so long that another run gets its name, it also continues under another name.
"""

import logging
from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import Any, TypeVar
from urllib.parse import quote

from shadeproxy_sdk.circuit_breaker import BreakerDecision, CircuitBreaker
from shadeproxy_sdk.connections import Answer
from shadeproxy_sdk.control import HINT_MEMORY_FULL, ControlSession, probe_timeout_s, read_json
from shadeproxy_sdk.errors import ConfigError, ControlError, Unreachable
from shadeproxy_sdk.job_settings import NEEDS
from shadeproxy_sdk.manifest import Manifest
from shadeproxy_sdk.names import other_name
from shadeproxy_sdk.tag import JobTag

Result = TypeVar("Result")

_LOG = logging.getLogger("shadeproxy_sdk")
_TRY_AGAIN = frozenset({408, 425, 429})
_NO_SUCH_CALL = frozenset({404, 405, 501})
_NOT_FOUND = 404
_CONFLICT = 409
_NOT_FEASIBLE = 422
_BAD_REQUEST = 400
_NOTHING_THERE = _NO_SUCH_CALL | {_CONFLICT}
# Error codes of a proxy that may have forgotten the job. A proxy that is too old to have the call answers
# "not_found" instead.
_MAY_BE_GONE = frozenset({"unknown_name", "conflict"})
_MARK_LENGTH = 8
_FULL_PAUSE_S, _LONGEST_FULL_PAUSE_S = 60.0, 1800.0


class Sent(Enum):
    """The result of a delivery. ARRIVED: the proxy accepted it. REFUSED: the proxy will never accept it.
    LATER: there was no answer, so try again. UNKNOWN: this proxy has no such call.
    """

    ARRIVED = auto()
    REFUSED = auto()
    LATER = auto()
    UNKNOWN = auto()


class Registration:
    """One job at one proxy. ``failures``: number of calls that failed. ``entered``: number of registrations.
    Each one after the first means that the proxy had forgotten the job, with its orders and scores.
    """

    def __init__(
        self,
        session: ControlSession,
        name: str,
        manifest: Manifest,
        *,
        rank: int,
        body: dict[str, Any],
        resume_scores: bool = False,
    ) -> None:
        self.failures = self.entered = 0
        # If a job on other data has this job's name, all ranks must choose the same other name. So the other
        # name is made from the manifest's digest.
        self._mark = manifest.digest.removeprefix("sha256:")[:_MARK_LENGTH]
        self.tag = JobTag(name, other_name(name, self._mark), rank)
        self._session = session
        self._manifest = manifest
        self._body = body
        # The first registration tells the proxy that a process of this rank begins. The proxy then starts a
        # new run, which does not draw from scores of earlier runs unless ``resume_scores`` is set.
        self._begins = f"?begins={rank}" + "&resume_scores=true" * resume_scores
        self._registered = False
        self._has_started = False
        self._complained = False
        # It is open while the proxy has no memory for the job: to try again may mean to send the manifest.
        self._full = CircuitBreaker(_FULL_PAUSE_S, max_pause_s=_LONGEST_FULL_PAUSE_S)

    @property
    def name(self) -> str:
        """The job's name at the proxy. It differs from the requested name if another run uses that."""
        return self.tag.job

    @property
    def _path(self) -> str:
        return f"/v1/jobs/{quote(self.name)}"

    def enter(self) -> None:
        """Register the job; if ``name`` is taken, under another name. If the proxy does not answer, only log
        a warning. Raises ControlError when the proxy refuses.
        """
        try:
            self._guard(lambda _: self._register())
        except Unreachable as error:
            self.failures += 1
            self._session.once.warn(
                f"{self._session!r}: the proxy does not answer ({error}); training goes on, and scores wait "
                "until it does"
            )
        except ControlError as error:
            if error.status != _CONFLICT:
                raise
            # The proxy has as many jobs as it may hold. So train as if there were no proxy, and register
            # later.
            self.failures += 1
            self._complain(error)
        finally:
            self._has_started = True

    def post(self, path: str, body: bytes | dict[str, Any], content_type: str = "application/json") -> Sent:
        """POST to the job's ``path``. Never raises."""
        return self._send("POST", path, body, content_type)

    def put(self, path: str, body: bytes, content_type: str) -> Sent:
        """PUT to the job's ``path``. Return UNKNOWN if the proxy has no such call. Never raises."""
        return self._send("PUT", path, body, content_type, unknown=_NO_SUCH_CALL)

    def delete(self, path: str) -> bool:
        """DELETE the job's ``path``. Return False if it must be tried again. Never raises.

        The job is not registered for this: if the proxy has forgotten the job, or another run has its name,
        there is nothing to delete.
        """
        url = self._path + path
        try:
            self._guard(lambda timeout_s: self._ask("DELETE", url, timeout_s=timeout_s))
        except Unreachable as error:
            self.failures += 1
            _LOG.debug("%s: %s", url, error)
            return False
        except (ControlError, ConfigError) as error:
            if not isinstance(error, ControlError) or error.status not in _NOTHING_THERE:
                self.failures += 1
                self._complain(error)
        return True

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any],
        content_type: str,
        unknown: Collection[int] = (),
    ) -> Sent:
        try:
            self._call(method, path, body, content_type)
        except Unreachable as error:
            self.failures += 1
            _LOG.debug("%s%s: %s", self._path, path, error)
            return Sent.LATER
        except (ControlError, ConfigError) as error:
            self.failures += 1
            if isinstance(error, ControlError) and error.status in unknown:
                return Sent.UNKNOWN
            self._complain(error)
            return Sent.REFUSED
        return Sent.ARRIVED

    def hurry(self) -> None:
        """Let the next call try the proxy, even if the last one has just failed."""
        self._session.connections.control_breaker.hurry(0.0)

    def fetch(
        self, path: str, body: dict[str, Any] | None = None, *, within_s: float | None = None
    ) -> Answer | None:
        """GET the job's ``path``, or POST ``body`` to it. Return None if there is no answer. Never raises.

        ``within_s``: most seconds to wait, if training waits for the answer. Such a call does not register
        the job, because that may take minutes; the next delivery registers it.
        """
        try:
            return self._call("GET" if body is None else "POST", path, body, within_s=within_s)
        except Unreachable as error:
            self.failures += 1
            _LOG.debug("%s%s: %s", self._path, path, error)
        except (ControlError, ConfigError) as error:
            self.failures += 1
            self._complain(error)
        return None

    def _call(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        content_type: str = "application/json",
        within_s: float | None = None,
    ) -> Answer:
        """Make a call about the job. Register the job before its first call, and again if the proxy has
        forgotten it or has another run under its name. ``within_s``: as in ``fetch``.
        """
        if within_s is not None:
            return self._call_soon(method, path, body, within_s)
        if not self._registered and self._full.ask() is BreakerDecision.REFUSE:
            raise Unreachable(self._full.reason)

        def call(timeout_s: float) -> Answer:
            fresh = not self._registered
            if fresh:
                self._register()
            asked = self.name
            try:
                return self._ask(method, self._path + path, body, content_type, timeout_s)
            except ControlError as error:
                if fresh or not self._is_gone(error, asked):
                    raise
            if self.name == asked:  # Otherwise another thread has renamed the job already.
                self._register()
            return self._ask(method, self._path + path, body, content_type, timeout_s)

        return self._guard(call)

    def _call_soon(
        self, method: str, path: str, body: bytes | dict[str, Any] | None, within_s: float
    ) -> Answer:
        """Make a call that takes at most ``within_s`` seconds, and never register the job for it."""
        if not self._registered:
            raise Unreachable("the job is not registered yet")
        try:
            return self._guard(
                lambda timeout_s: self._ask(
                    method, self._path + path, body, timeout_s=min(timeout_s, within_s)
                )
            )
        except ControlError as error:
            if error.code not in _MAY_BE_GONE:
                raise
            self._registered = False  # The next delivery checks that, and registers the job.
            raise Unreachable(str(error)) from None

    def _is_gone(self, error: ControlError, name: str) -> bool:
        """Return whether ``error`` means that the job is gone: the proxy has no job ``name``, or its job of
        that name is on other samples.
        """
        if error.status != _CONFLICT:
            return error.status == _NOT_FOUND
        try:
            answer = self._session.call("GET", f"/v1/jobs/{quote(name)}")
        except ControlError as looking:
            return looking.status == _NOT_FOUND
        return not self._is_ours(answer)

    def _is_ours(self, answer: Answer) -> bool:
        """Return whether the answer describes a job or dataset with this manifest. Raises ConfigError if it
        is no answer of a proxy.
        """
        return bool(read_json(answer, repr(self._session)).get("digest") == self._manifest.digest)

    def _ask(
        self,
        method: str,
        url: str,
        body: bytes | dict[str, Any] | None = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
    ) -> Answer:
        """Make a call about the registered job. The call carries the manifest's digest: another run may have
        taken the job's name while this run was silent, and the proxy must notice it. Raises like
        ``ControlSession.call``.
        """
        extra = {"x-shade-manifest": self._manifest.digest}
        return self._session.call(
            method, url, body, content_type=content_type, extra=extra, timeout_s=timeout_s
        )

    def _guard(self, action: Callable[[float], Result]) -> Result:
        """Run ``action`` with a timeout in seconds, if the circuit breaker allows it. Raises Unreachable if
        the breaker refuses, and instead of an error that another attempt may cure: 408, 425, 429, and 5xx
        except 501.
        """
        breaker = self._session.connections.control_breaker
        decision = breaker.ask()
        if decision is BreakerDecision.REFUSE:
            raise Unreachable(breaker.reason)
        try:
            result = action(probe_timeout_s(decision, self._session.timeout_s))
        except Unreachable as error:
            breaker.failed(decision, str(error))
            raise
        except ControlError as error:
            breaker.succeeded()
            if (error.status >= 500 and error.status != 501) or error.status in _TRY_AGAIN:
                raise Unreachable(str(error)) from None
            raise
        breaker.succeeded()
        return result

    def _register(self) -> None:
        """Register dataset and job, each under another name if its own name is taken. Raises ControlError."""
        self._registered = False
        try:
            self._register_both()
        except ControlError as error:
            if error.status == HINT_MEMORY_FULL:
                self._session.once.warn(f"{error}. Training goes on, and scores wait until there is room")
                again = BreakerDecision.PROBE if self._full.is_open else BreakerDecision.ALLOW
                self._full.failed(again, str(error))
            raise
        self._full.succeeded()
        self._registered = True
        self.entered += 1

    def _register_both(self) -> None:
        # Keep the name: another thread, or another job on this dataset, may rename the manifest meanwhile.
        dataset = self._manifest.name
        try:
            self._register_dataset()
        except ControlError as error:
            if error.status != _CONFLICT or dataset.endswith(f".{self._mark}"):
                raise
            self._manifest.name = other_name(dataset, self._mark)
            self._register_dataset()
        asked, other = self.name, self.tag.other
        try:
            self._register_job(asked)
        except ControlError as error:
            if error.status != _CONFLICT or other is None:
                raise
            self._register_job(other)
            self.tag.rename()
            _LOG.warning("%s. This run goes on as job %r, not %r", error, other, asked)

    def _register_dataset(self) -> None:
        """Register the manifest, unless the proxy has it already, so that its samples can be named by id.

        This must happen before the job is registered, because the proxy does not change the dataset of a job
        in use.
        """
        try:
            answer = self._session.call("GET", f"/v1/datasets/{quote(self._manifest.name)}")
            if self._is_ours(answer):
                self._manifest.registered = self._manifest.digest
                return
        except ControlError as error:
            if error.status != _NOT_FOUND:
                raise
        self._session.register(self._manifest)

    def _register_job(self, name: str) -> None:
        body = {"dataset": self._manifest.name, **self._body}
        begins = "" if self.entered else self._begins
        path = f"/v1/jobs/{quote(name)}{begins}"
        try:
            answer = self._session.call("PUT", path, body)
        except ControlError as error:
            # An invalid need is an error only at the start. Later, the proxy may refuse a need because its
            # deadline is over, and the user cannot correct that.
            is_late = self._has_started and error.status == _BAD_REQUEST and NEEDS & self._body.keys()
            if error.status != _NOT_FEASIBLE and not is_late:
                raise
            without = {name: value for name, value in self._body.items() if name not in NEEDS}
            answer = self._session.call("PUT", path, {"dataset": self._manifest.name, **without})
            _LOG.warning("%s. This run goes on without a need", error)
            self._body = without
        if not self._is_ours(answer):
            raise ControlError(
                _CONFLICT,
                "conflict",
                f"dataset {self._manifest.name!r} changed while job {name!r} was registered: two runs "
                "register it differently",
            )

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            _LOG.warning("%s, and more such will only be counted", error)
