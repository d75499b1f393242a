"""Jobs that read over a full link by a manual clock, and the code of the proxy that shares the link."""

from shadeproxy.app.sharing import JobSharing
from shadeproxy.core.types import JobContext, ObjectRef, Source
from shadeproxy.hints.jobs import Job, Progress
from shadeproxy.hints.manifest import ManifestBuilder
from shadeproxy.hints.registry import HintRegistry
from shadeproxy.origin.limit import LimitedOrigin
from shadeproxy.origin.memory import MemoryOrigin
from shadeproxy.telemetry.stats import Stats
from tests.support.clock import ManualClock

SAMPLES, SIZE = 1000, 1000
LINK = 100_000.0


class World:
    """Jobs that read at given rates over a full link, in steps of two seconds.

    ``told``: the speed of the link in bytes per second, which a test may change.
    """

    def __init__(self, *, told=LINK, room=0, max_open=8):
        self.told = told
        self.clock = ManualClock()
        self.hints = HintRegistry()
        self.stats = Stats(now_s=self.clock.now_s)
        self.limited = LimitedOrigin(MemoryOrigin(), max_open=max_open, max_wait_s=3600.0)
        self.sharing = JobSharing(
            self.hints,
            self.stats,
            self.clock,
            self.limited,
            page_bytes=1 << 20,
            capacity_bytes=lambda: room,
            told_bytes_per_s=lambda: self.told,
        )
        self.done = {}
        self.shared = None
        share = self.limited.share

        def record(link, weights):
            self.shared = weights
            share(link, weights)

        self.limited.share = record

    def register(self, name, need=None, **fields):
        builder = ManifestBuilder(name, page_size=1 << 20)
        for number in range(SAMPLES):
            builder.add(ObjectRef("b", f"{name}/{number}"), None, None)
        self.hints.put_dataset(builder.finish())
        self.put(name, need, **fields)

    def put(self, name, need=None, **fields):
        self.hints.put_job(Job(name, dataset=name, need=need, **fields), self.clock.now_s())

    def read(self, name, per_s, full=100.0):
        """Let a job read for two seconds. ``full``: how many samples per second its training could use."""
        count = int(2 * per_s)
        done = self.done[name] = self.done.get(name, 0) + count
        epoch, position = divmod(done, SAMPLES)
        job = JobContext(name, epoch, 0)
        self.stats.record_reads("b", Source.ORIGIN, count, count * SIZE, job)
        for _ in range(count):
            self.stats.record_origin("get", SIZE, 0.1)
        self.stats.record_training(name, epoch, stall_s=0.0, compute_s=count / full)
        self.hints.report_progress(name, 0, Progress(epoch, position), self.clock.now_s())

    def step(self, **rates):
        for name, rate in rates.items():
            self.read(name, *rate) if isinstance(rate, tuple) else self.read(name, rate)
        self.clock.advance(2.0)
        self.sharing.step()

    def steps(self, count, **rates):
        for _ in range(count):
            self.step(**rates)

    def mode(self):
        return self.sharing.summary()["mode"]
