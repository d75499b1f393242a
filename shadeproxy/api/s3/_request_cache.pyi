import asyncio
from collections.abc import Callable, Iterator

from shadeproxy.api.s3.connection import S3Protocol
from shadeproxy.api.s3.exchange import Outcome
from shadeproxy.api.s3.request_cache import RequestCache
from shadeproxy.api.s3.sender import Copying, Sender
from shadeproxy.core.memo import Memo
from shadeproxy.core.types import JobContext, ObjectRef, Source, Span
from shadeproxy.engine.base import PageHandle, SendfileSlice
from shadeproxy.engine.read.access_log import AccessLog
from shadeproxy.engine.read.worker_access_log import WorkerAccessLog
from shadeproxy.engine.worker_reads import SharedPageHandle

SOURCE: str
"""SHA-256 of the sources from which this module was compiled. The build adds this value."""
SOURCES: tuple[str, ...]
"""Names of the sources from which this module was compiled. The build adds them."""

def learn_slots(owner: type, name: str = "") -> list[str]: ...
def data_received(protocol: S3Protocol, data: bytes) -> None: ...
def worker_data_received(protocol: asyncio.Protocol, data: bytes) -> None: ...

class CompiledHits:
    def __init__(
        self,
        cache: RequestCache,
        access_log: AccessLog,
        handles: Memo[tuple[ObjectRef, int], PageHandle],
        *,
        otherwise: Callable[[bytes, Sender], Outcome],
        find_handle: Callable[[ObjectRef, int, float], PageHandle | None],
        take: Callable[[PageHandle, JobContext | None, float, Span | None], memoryview | None],
        take_slices: Callable[[PageHandle, JobContext | None, float, Span], tuple[SendfileSlice, ...] | None],
        numbers: Iterator[int],
        check_time: Callable[[str, float], None],
        new_slice: type[SendfileSlice],
        new_span: type[Span],
        copy_bytes: int,
        sendfile_bytes: int,
        page_bytes: int,
        ram: Source,
        bounds_s: tuple[float, ...],
        lease: memoryview[float] | None = None,
        wall_s: Callable[[], float] | None = None,
    ) -> None: ...
    @property
    def answered(self) -> int: ...
    def take_tallies(self) -> list[tuple[bool, bool, int, float, list[int]]]: ...
    def answer(self, raw: bytes, out: Sender) -> Outcome: ...

class CompiledWorkerHits:
    def __init__(
        self,
        cache: RequestCache,
        access_log: WorkerAccessLog,
        handles: Memo[tuple[ObjectRef, int], SharedPageHandle],
        *,
        lease: memoryview[float] | None,
        longest: memoryview[int],
        otherwise: None,
        find_handle: Callable[[ObjectRef, int, float], PageHandle | None],
        take: Callable[[PageHandle, JobContext | None, float, Span | None], memoryview | None],
        take_slices: Callable[[PageHandle, JobContext | None, float, Span], None],
        numbers: Iterator[int],
        check_time: Callable[[str, float], None],
        new_slice: type[SendfileSlice],
        new_span: type[Span],
        copy_bytes: int,
        sendfile_bytes: int,
        page_bytes: int,
        ram: Source,
        bounds_s: tuple[float, ...],
    ) -> None: ...
    @property
    def answered(self) -> int: ...
    def take_tallies(self) -> list[tuple[bool, bool, int, float, list[int]]]: ...
    def answer(self, raw: bytes, out: Copying) -> Outcome: ...
