"""The trainings that the demo compares. Each training runs in a process of its own, which reports events, and
has new servers.
"""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from shadeproxy.core.errors import ShadeProxyError
from shadeproxy.demo.messages import EpochDone, Event, ExistingServer, Mode, TrainingPlan
from shadeproxy.demo.processes import Child, running
from shadeproxy.demo.report import Epoch, Run, through_proxy, without_cache
from shadeproxy.demo.servers import file_server_settings, plain_environment, proxy_settings, serving

ORIGIN_DELAY = "20 ms"
_TRAIN = (sys.executable, "-m", "shadeproxy.demo.train")


@dataclass(frozen=True, slots=True)
class Contestant:
    """One training to compare. ``policy``: the policy of its proxy; None: the training reads from the origin,
    without a proxy.
    """

    name: str
    title: str
    policy: str | None
    mode: Mode = "uniform"
    scores: bool = False


DIRECT = Contestant("direct", "no cache", policy=None)
LRU = Contestant("lru", "LRU", policy="lru")
UNSCORED = Contestant("default", "ShadeProxy", policy="default")
SHADE = Contestant("shade", "ShadeProxy+SDK", policy="default", mode="importance", scores=True)

CONTESTANTS = (DIRECT, LRU, SHADE)
"""The trainings that take less than four minutes together on two cores. With UNSCORED, they would take
longer.
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """The data that all runs share. ``objects``: a directory of buckets, or an existing server that already
    has the objects. ``plan``: a plan for every training; each run replaces the fields in which it differs.
    ``environment``: variables that a training needs in addition to those of the demo itself.
    """

    directory: Path
    objects: Path | ExistingServer
    cache_bytes: int
    plan: TrainingPlan
    environment: dict[str, str] = field(repr=False)


def run(contestant: Contestant, stage: Stage, watch: Callable[[Event], None]) -> Run:
    """Train once, with new servers and empty caches. ``watch`` is called with each event.

    Raises ShadeProxyError, with the end of the log of the process that failed.
    """
    directory = stage.directory / contestant.name
    directory.mkdir()
    with _data_source(contestant, stage, directory) as source:
        plan = msgspec.structs.replace(
            stage.plan,
            control_url=source if isinstance(source, str) else None,
            origin=None if isinstance(source, str) else source,
            mode=contestant.mode,
            scores=contestant.scores,
        )
        epochs = []
        # End the training before its servers. Without ``closing``, the generator would stay open as long as
        # any traceback refers to it.
        with closing(_training(plan, directory / "train.log", stage.environment)) as events:
            for event in events:
                watch(event)
                if isinstance(event, EpochDone):
                    epochs.append(_epoch(contestant, event))
    return Run(contestant.name, tuple(epochs))


def _epoch(contestant: Contestant, done: EpochDone) -> Epoch:
    if contestant.policy is None:
        return without_cache(done)
    if done.counted is None:
        raise ShadeProxyError("the training asked no proxy, though it was to read through one")
    return through_proxy(done, done.counted)


@contextmanager
def _data_source(contestant: Contestant, stage: Stage, directory: Path) -> Iterator[str | ExistingServer]:
    """Start the source from which the run reads, and yield it: the control URL of a proxy, or an S3 server
    without batch calls.

    The built-in origin is a proxy that caches nothing. It could answer batch calls, but object stores have
    none. So a run without a cache reads from it object by object, as from any object store.
    """
    if contestant.policy is None and isinstance(stage.objects, ExistingServer):
        yield stage.objects
        return
    with origin_of(stage, directory) as origin:
        if contestant.policy is None:
            yield ExistingServer(origin["endpoint"], "us-east-1")
            return
        settings = proxy_settings(origin, policy=contestant.policy, cache_bytes=stage.cache_bytes)
        with serving("proxy", settings, directory / "proxy") as proxy:
            yield proxy.control_url


@contextmanager
def origin_of(stage: Stage, directory: Path) -> Iterator[dict[str, Any]]:
    """Start the built-in origin, unless the user has named a server. Yield the settings by which a proxy
    reads from the origin.
    """
    if isinstance(stage.objects, ExistingServer):
        yield {"endpoint": stage.objects.endpoint, "region": stage.objects.region}
        return
    files = file_server_settings(stage.objects, delay=ORIGIN_DELAY)
    with serving("origin", files, directory / "origin") as server:
        yield {"endpoint": server.s3_url, "credentials": {"source": "anonymous"}}


def _training(plan: TrainingPlan, log: Path, environment: dict[str, str]) -> Generator[Event]:
    with training("training", plan, log, environment) as child:
        stdout = child.process.stdout
        assert stdout is not None
        decoder = msgspec.json.Decoder(Event)
        for line in stdout:
            yield decoder.decode(line)
        expect_success(child)


@contextmanager
def training(name: str, plan: TrainingPlan, log: Path, environment: dict[str, str]) -> Iterator[Child]:
    """Start a training process. Each line of its stdout is one event."""
    env = plain_environment() | environment
    with running(name, _TRAIN, log=log, env=env, piped=True) as child:
        stdin = child.process.stdin
        assert stdin is not None
        stdin.write(msgspec.json.encode(plan))
        stdin.close()
        yield child


def expect_success(child: Child) -> None:
    """Wait for the end of a process that has closed its stdout. Raise ShadeProxyError if it failed."""
    if child.process.wait() != 0:
        raise child.failure()
