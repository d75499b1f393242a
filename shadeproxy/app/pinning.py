"""Pins of a running proxy. Pins that calls made are stored in the control state. All pins, also those of
rules, are applied to the cached pages.

Laws: a pin counts from the moment of its call, and is durable before the call is answered. Pages that are
cached already are also pinned or unpinned before the answer. After a start or a reload, or if the pin cannot
be saved, this happens in the background.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import structlog

from shadeproxy.core.clock import Clock
from shadeproxy.core.errors import Conflict, UnknownName
from shadeproxy.core.types import OWN
from shadeproxy.engine.placement.pins import MOST_PINS, PinnedPrefix, Pins, Prefix
from shadeproxy.engine.rules import Rule
from shadeproxy.hints.order.share import OwnedShare
from shadeproxy.state.store import StateStore

_log = structlog.get_logger(__name__)
_KIND = "pins"
_VERSION = 1
# Version of a stored pin in another namespace than the proxy's own. Older releases know no namespaces, and
# skip a pin of this version.
_NAMESPACE_VERSION = 2
_MOST_NAMED = 10

_Renew = Callable[[], Coroutine[Any, Any, None]]


class _StoredPin(msgspec.Struct):
    version: int
    bucket: str
    prefix: str
    since_s: float
    namespace: str = OWN


def restore_pins(pins: Pins, state: StateStore) -> None:
    """Add the pins stored in ``state`` to ``pins``. Log pins that cannot be read, and leave them out.
    Blocks.
    """
    for name, blob in state.load_all(_KIND).items():
        try:
            stored = msgspec.msgpack.decode(blob, type=_StoredPin)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning("stored state left out", kind=_KIND, name=name, error=str(error))
            continue
        if stored.version not in (_VERSION, _NAMESPACE_VERSION):
            _log.warning("stored state left out", kind=_KIND, name=name, version=stored.version)
            continue
        pins.add(PinnedPrefix(stored.bucket, stored.prefix, stored.since_s, stored.namespace))


class DurablePins:
    """Pins that calls made, and that survive a restart. ``renew`` applies all pins to the cached pages."""

    def __init__(self, pins: Pins, state: StateStore, clock: Clock, renew: _Renew) -> None:
        self.pins = pins
        self._state = state
        self._clock = clock
        self._renew = renew
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ calls

    async def pin(self, bucket: str, prefix: str, namespace: str = OWN) -> None:
        """Pin a prefix, and the cached pages under it. Raises Conflict if there are too many pins; StateError
        if the pin cannot be saved, though it holds.
        """
        place = Prefix(bucket, prefix, namespace)
        if place in self.pins:
            # The call that made this pin may still wait until the pin is saved, or saving may have failed. So
            # save again.
            await self._save_and_apply()
            return
        if len(self.pins) >= MOST_PINS:
            raise Conflict(
                f"{MOST_PINS} prefixes are pinned, which is as many as may be",
                hint="unpin one, or pin a prefix that they share; GET /v1/pins lists them",
            )
        since_s = self._clock.now_s()
        self.pins.add(PinnedPrefix(bucket, prefix, since_s, namespace))
        version = _NAMESPACE_VERSION if namespace else _VERSION
        stored = _StoredPin(version, bucket, prefix, since_s, namespace)
        self._state.put(_KIND, _name(place), msgspec.msgpack.encode(stored))
        await self._save_and_apply()

    async def unpin(self, bucket: str, prefix: str, namespace: str = OWN) -> None:
        """Remove a pin, also from the cached pages. Raises UnknownName, Conflict; StateError if the change
        cannot be saved, though it holds.
        """
        place = Prefix(bucket, prefix, namespace)
        if place not in self.pins:
            # The call that removed this pin may still wait until that is saved, or saving may have failed. So
            # save again.
            await self._state.flush()
        self.require(place)
        self.pins.remove(*place)
        self._state.delete(_KIND, _name(place))
        await self._save_and_apply()

    async def _save_and_apply(self) -> None:
        """Save a change, and apply the pins to the cached pages: also if saving fails or the call is
        cancelled, because the change holds all the same.
        """
        applied = self._spawn()
        await self._state.flush()
        await asyncio.shield(applied)

    def require(self, place: Prefix) -> None:
        """Raise UnknownName or Conflict unless a call pinned exactly this prefix."""
        if place in self.pins:
            return
        uri, rule = _uri(place), self.pins.rule_over(place.bucket, place.prefix)
        if rule is not None:
            raise Conflict(
                f"{uri} is pinned by {describe(*rule)} of the configuration, not by a call",
                hint="write pin = false there and send SIGHUP",
            )
        pinned = [_uri(pin.place) for pin in self.pins.by_call()]
        more = f" and {len(pinned) - _MOST_NAMED} more" if len(pinned) > _MOST_NAMED else ""
        raise UnknownName(
            f"no call pinned {uri}",
            hint=f"pinned are {', '.join(pinned[:_MOST_NAMED])}{more}; name one of them exactly"
            if pinned
            else "nothing is pinned by a call",
        )

    # ------------------------------------------------------------------ what is cached

    def start(self) -> None:
        """Apply the pins to the cached pages in the background."""
        self._spawn()

    def rules_changed(self) -> None:
        """Apply all pins to the cached pages again, after a change of the rules."""
        self.pins.changed()
        self._spawn()

    def share_changed(self, share: OwnedShare) -> None:
        """Keep pinned only pages of objects that belong to ``share``, this proxy's new share.

        If the share is not known yet, or is empty, all pages stay as they are: an empty share was given up
        and may come back.
        """
        known = None if self.pins.share is None else self.pins.share.number
        if share.number not in {None, (), known}:
            self.pins.share = share
            self.rules_changed()

    async def aclose(self) -> None:
        """Cancel the background tasks."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self._renew(), name="pins")
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("pins were not carried over to what is cached", exc_info=task.exception())


def describe(place: int, rule: Rule) -> str:
    """Return the words that name a rule of the configuration: its place, bucket and prefix."""
    return f'rules[{place}] (bucket = "{rule.bucket}", prefix = "{rule.prefix}")'


def _uri(place: Prefix) -> str:
    uri = f"s3://{place.bucket}/{place.prefix}"
    return f"{uri} (namespace {place.namespace})" if place.namespace else uri


def _name(place: Prefix) -> str:
    if place.namespace:
        # In this form the name begins with "[", with which no bucket's name begins. So the two forms cannot
        # be confused.
        return msgspec.json.encode(place).decode()
    return f"{place.bucket}/{place.prefix}"
