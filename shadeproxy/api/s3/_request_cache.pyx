# cython: language_level=3, binding=False, boundscheck=True, wraparound=False
"""``RequestCache.answer`` (request_cache.py) compiled: the same decisions in a third of the time.

A hit runs in this module from the transport's callback to the system call that sends it. Laws: this module makes
only decisions of request_cache.py, in the same order. A request is answered here only if it is, byte for byte, a
plain GET of a known page by a known client. All others go on unchanged. The same functions verify signatures.
Nothing of shadeproxy is imported: objects are passed in, and their fields are read. Named tuples are read by
position; tests/api/s3/test_compiled.py checks the positions.
"""

cimport cython

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.string cimport memchr, memcmp, memcpy, memset

from hmac import compare_digest

from xxhash import xxh3_64_intdigest

cdef extern from "<string.h>" nogil:  # GNU's declaration, which Python.h enables
    void* memmem(const void* text, size_t text_bytes, const void* part, size_t part_bytes)

cdef extern from "Python.h":
    Py_buffer* PyMemoryView_GET_BUFFER(object view)
    bint PyMemoryView_Check(object view)
    object PyMemoryView_FromMemory(char* start, Py_ssize_t size, int flags)
    int PyBUF_READ

cdef extern from "<unistd.h>" nogil:
    long sysconf(int name)
    int _SC_PAGESIZE

cdef extern from "<sys/mman.h>" nogil:
    int mincore(void* address, size_t size, unsigned char* pages)

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len

cdef extern from "<sys/socket.h>" nogil:
    struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int descriptor, const msghdr* message, int flags)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL

cdef extern from "<sys/sendfile.h>" nogil:
    ssize_t c_sendfile "sendfile"(int to, int descriptor, int64_t* offset, size_t size)

include "_slots.pxi"
include "_blocks.pxi"
include "_sending.pxi"
include "_tallies.pxi"

cdef const char* DIGITS = b"0123456789ABCDEF"
cdef const char* VERSION = b" HTTP/1.1\r\n"
cdef uintptr_t PAGE_BYTES = sysconf(_SC_PAGESIZE)
cdef enum:
    MOST_PAGES = 8193  # 32 MiB, the longest page, at any offset
    VERSION_BYTES = 11
    ID_BYTES = 16
    # ``_OURS`` of relay.py, and ``UNASKED`` of sender.py.
    OURS = 0
    UNASKED = -1
    # Offset of "first" in a USE (engine/access_records.py); "size_bytes" follows it.
    USE_FIRST = 24
    # As the end of a span: the whole page is meant.
    WHOLE = -1
    # Positions in named tuples: CachedTarget, PartHead, Plan, AccessRecord, SendableBlocks.
    TARGET_REF = 0
    TARGET_PATH = 1
    TARGET_HANDLE = 2
    TARGET_HEADS = 3
    PART_META = 0
    PART_BEFORE = 1
    PART_BETWEEN = 2
    PART_AFTER = 3
    PLAN_JOB = 0
    PLAN_CHECKSUMS = 2
    RECORD_JOB = 0
    RECORD_KINDS = 1
    RECORD_ROW = 3


@cython.binding(True)
def data_received(protocol, data):
    """Answer ``data`` if it is one whole request and the connection is free for it. Pass all else to ``receive``."""
    cdef CompiledHits hits
    cdef double started_s
    transport, sender = get(protocol, PROTOCOL, TRANSPORT), get(protocol, PROTOCOL, SENDER)
    if (
        type(data) is bytes and sender is not None and transport is not None and not get(protocol, PROTOCOL, HELD)
        and get(protocol, PROTOCOL, READING) is None
        and not (get(protocol, PROTOCOL, ENDING) or get(protocol, PROTOCOL, PAUSED))
        and get(sender, WRITER, OUT_SLICE) is None and not transport.is_closing()
    ):
        hits = protocol.hits
        started_s = monotonic_s()
        if hits.find(data, sender):
            count_hit(hits, started_s)
            put(protocol, PROTOCOL, BEGUN, get(protocol, PROTOCOL, BEGUN) + 1)
            put(protocol, PROTOCOL, ACTIVE, True)
            return
        hits.looked = data
    protocol.receive(data)


cdef class CompiledHits:
    """Answers requests that ``cache`` (RequestCache) knows. ``otherwise`` is called for all others; None: they get no
    answer here.

    The other arguments are objects of shadeproxy that this module does not import. ``access_log``
    (engine/read/access_log.py), ``handles`` (of Hits), ``find_handle``, ``take`` and ``take_slices`` (of ReadsNow)
    belong to the pages of one engine, which have ``page_bytes``. ``numbers`` yields the request ids. ``check_time`` is
    that of signed.py, ``new_slice`` SendfileSlice, ``new_span`` Span, ``ram`` Source.RAM. Pages of up to ``copy_bytes``
    are copied; slices of ``sendfile_bytes`` or more leave by sendfile. ``bounds_s``: bounds of the histograms of
    ``take_tallies``. ``lease``, ``wall_s``: see core/clock.py ``LeasedClock``. ``answered``: number of requests
    answered here.
    """

    cdef object cache, otherwise, access_log, residents, handles, find_handle, take, take_slices
    cdef object numbers, now_s, check_time, new_slice, new_span, source, ram
    cdef Tally[TALLIES] tallies
    cdef double[MOST_BOUNDS] bounds_s
    cdef int bounds
    cdef bint is_part  # whether the present answer is a range
    cdef readonly uint64_t answered
    cdef object looked  # the request that was just looked up and is not known
    cdef Py_ssize_t copy_bytes, sendfile_bytes, page_bytes, most_waiting_bytes
    cdef bytes source_end, if_match
    cdef int64_t end_second
    # True in a worker: the pages are another process's.
    cdef bint is_shared
    # The end of the lease during which pages may be sent, in the memory ``lease``. NULL: no lease is needed.
    cdef const double* lease_until_s
    cdef object lease, wall_s

    def __init__(
        self, cache, access_log, handles, *, otherwise, find_handle, take, take_slices, numbers, check_time,
        new_slice, new_span, Py_ssize_t copy_bytes, Py_ssize_t sendfile_bytes, Py_ssize_t page_bytes,
        ram, tuple bounds_s, lease=None, wall_s=None,
    ):
        cdef int place
        self.cache, self.otherwise = cache, otherwise
        self.access_log, self.residents = access_log, access_log.residents
        self.find_handle, self.take, self.take_slices, self.new_span = find_handle, take, take_slices, new_span
        self.numbers, self.now_s, self.check_time, self.new_slice = numbers, cache.now_s, check_time, new_slice
        self.handles = handles
        self.copy_bytes, self.sendfile_bytes, self.page_bytes = copy_bytes, sendfile_bytes, page_bytes
        self.most_waiting_bytes = access_log.most_waiting_bytes
        self.source, self.source_end, self.end_second, self.looked = None, b"", -1, None
        self.ram, self.bounds, self.is_part = ram, len(bounds_s), False
        self.is_shared, self.lease, self.wall_s, self.lease_until_s = False, lease, wall_s, NULL
        if lease is not None:
            if not PyMemoryView_Check(lease) or lease.nbytes != sizeof(double):
                raise ValueError("the lease is no memory of one f64")
            self.lease_until_s = <const double*>PyMemoryView_GET_BUFFER(lease).buf
        if self.bounds > MOST_BOUNDS:
            raise ValueError("too many bounds")
        for place in range(self.bounds):
            self.bounds_s[place] = bounds_s[place]
        memset(self.tallies, 0, sizeof(self.tallies))

    def take_tallies(self):
        """Return the counts of hits since the last call. One row for each kind of hit: whether it came from a disk,
        whether it was a range, the number of requests, their seconds, and the buckets of their histogram.
        """
        cdef int number, place
        taken = []
        for number in range(TALLIES):
            if self.tallies[number].requests:
                buckets = [self.tallies[number].buckets[place] for place in range(self.bounds + 1)]
                taken.append((
                    number >= OF_DISK, bool(number & OF_PART), self.tallies[number].requests,
                    self.tallies[number].seconds, buckets,
                ))
        memset(self.tallies, 0, sizeof(self.tallies))
        return taken

    def answer(self, bytes raw not None, out not None):
        """Answer like ``FastLane.answer``."""
        cdef double started_s = monotonic_s()
        if raw is not self.looked and self.find(raw, out):
            count_hit(self, started_s)
            return True
        self.looked = None
        return None if self.otherwise is None else self.otherwise(raw, out)

    cdef bint find(self, bytes raw, out) except -1:
        cdef const char* text = PyBytes_AS_STRING(raw)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(raw), begin
        cdef const char* space
        cdef double now_s
        cdef PyObject* found
        cdef bytes target
        cdef Cut cut
        # Known requests are compared up to their end. So an incomplete request, or several in one piece, is not found.
        if size < 5 or memcmp(text, b"GET /", 5) != 0 or memcmp(text + size - 4, b"\r\n\r\n", 4) != 0:
            return False
        space = <const char*>memchr(text + 4, c" ", size - 4)
        if space == NULL:
            return False
        begin = space - text + VERSION_BYTES
        if begin > size or memcmp(space, VERSION, VERSION_BYTES) != 0:
            return False
        target = PyBytes_FromStringAndSize(text + 4, space - text - 4)
        found = find_young(self.cache, TARGETS, target)
        if found == NULL:
            return False
        cached = <tuple><object>found
        now_s = self.wall_s() if is_leased(self) else self.now_s()
        self.is_part = find_range(text + begin, size - begin, &cut)
        if self.is_part:
            return self.find_part(out, cached, target, text + begin, size - begin, cut, now_s)
        handle = cached[TARGET_HANDLE]
        if handle is None:
            return False
        plan = self.plan(text + begin, size - begin, cached[TARGET_PATH], b"", now_s)
        if plan is None or not self.matches(handle.meta):
            return False
        head = cached[TARGET_HEADS][1 if (<tuple>plan)[PLAN_CHECKSUMS] else 0]
        return self.send(out, head, handle, (<tuple>plan)[PLAN_JOB], now_s, 0, WHOLE)

    cdef bint find_part(
        self, out, tuple cached, bytes target, const char* block, Py_ssize_t size, Cut cut, double now_s
    ) except -1:
        """Compiled ``RequestCache._answer_range``, for ranges that name their first and last byte."""
        cdef bytes rest, value
        cdef int64_t total, stop, first
        rest = PyBytes_FromStringAndSize(NULL, size - (cut.stop - cut.start))
        memcpy(PyBytes_AS_STRING(rest), block, cut.start)
        memcpy(PyBytes_AS_STRING(rest) + cut.start, block + cut.stop, size - cut.stop)
        value = PyBytes_FromStringAndSize(block + cut.value_start, cut.stop - 2 - cut.value_start)
        plan = self.plan(PyBytes_AS_STRING(rest), PyBytes_GET_SIZE(rest), cached[TARGET_PATH], value, now_s)
        handle = None if plan is None else handle_at(self, cached[TARGET_REF], cut.first, now_s)
        if handle is None:
            return False
        meta = handle.meta
        if not self.matches(meta):
            return False
        total = meta.size
        stop = min(cut.last + 1, total)
        if cut.first >= stop:
            return False
        part = self.part_head(target, meta, value)
        if part is None:
            return False
        head = start_of_part(<tuple>part, cut.first, stop, total)
        job, first = (<tuple>plan)[PLAN_JOB], get(handle, HANDLE, FIRST)
        if send_slices(self, out, head, handle, job, now_s, cut.first, stop):
            return True
        if first <= cut.first and stop - first <= <int64_t>handle.stop - <int64_t>handle.start:
            return self.send(out, head, handle, job, now_s, cut.first, stop)
        if get(handle, HANDLE, CAN_WAIT) and ready(out) < 0:
            return False
        slices = self.take_slices(handle, job, now_s, self.new_span(cut.first, stop))
        if slices is None:
            return False
        out.send(self.render(head, self.end_of_head(handle.source, now_s), NULL, 0), *slices)
        if job is not None:
            self.cache.touch(job, now_s)
        return True

    cdef object plan(self, const char* block, Py_ssize_t size, bytes path, bytes range_value, double now_s):
        """Return the plan of a header block. If its If-Match must be cut out, keep the ETag for ``matches``."""
        self.if_match = None
        plan = find_plan(self.cache, self.check_time, block, size, path, range_value, b"", now_s)
        if plan is not None:
            return plan
        cut = cut_if_match(block, size)
        if cut is None:
            return None
        rest, self.if_match = <tuple>cut
        return find_plan(
            self.cache, self.check_time, PyBytes_AS_STRING(rest), PyBytes_GET_SIZE(rest), path, range_value,
            self.if_match, now_s,
        )

    cdef bint matches(self, meta) except -1:
        """Return whether the request's If-Match names this version, or the request has none."""
        return self.if_match is None or self.if_match.decode() == meta.etag

    cdef object part_head(self, bytes target, meta, bytes range_value):
        """Compiled ``RequestCache.part_head``."""
        cdef PyObject* found = find_young(self.cache, PARTS, target)
        if found != NULL and (<tuple><object>found)[PART_META] is meta:
            return <object>found
        return self.cache.part_head(target, meta, range_value.decode())

    cdef bytes end_of_head(self, source, double now_s):
        """Return what ``RequestCache.end_of_head`` returns; it is kept as long as source and second are the same."""
        cdef int64_t second = <int64_t>now_s
        if source is not self.source or second != self.end_second:
            self.source, self.source_end, self.end_second = source, self.cache.end_of_head(source, now_s), second
        return self.source_end

    cdef bint send(
        self, out, bytes start_of_head, handle, job, double now_s, int64_t begin, int64_t end
    ) except -1:
        """Send the object's bytes ``[begin, end)``, which lie in one page, or the whole page if ``end`` is WHOLE.

        This is ``RequestCache._send`` with the functions of engine/read/hits.py that it calls, compiled.
        """
        cdef Py_ssize_t start = get(handle, HANDLE, START), stop = get(handle, HANDLE, STOP)
        cdef bint is_short = stop - start <= self.copy_bytes
        cdef const char* window
        cdef bytes head, ending
        cdef int descriptor = -1
        sendable = get(handle, HANDLE, SENDABLE)
        if not is_short:
            descriptor = ready(out)
        if not is_short and descriptor < 0 and get(handle, HANDLE, CAN_WAIT):
            return False  # RequestCache._send copies the bytes, or sends them when the transport is empty.
        if sendable is None and not is_short and descriptor < 0:
            span = None if end == WHOLE else self.new_span(begin, end)
            body = self.take(handle, job, now_s, span)  # the page must be pinned
            if body is None:
                return False
            head = self.render(start_of_head, self.end_of_head(handle.source, now_s), NULL, 0)
            out.transport.writelines((head, body))
        else:
            if not is_good(self, handle, now_s):
                return False
            if end != WHOLE:
                bounds(&start, &stop, get(handle, HANDLE, FIRST), begin, end)
            window = mapped(handle, start, stop)
            if window == NULL:
                return False
            if get(handle, HANDLE, CAN_WAIT) and not may_send(handle, window, start, stop):
                return False
            ending = self.end_of_head(get(handle, HANDLE, SOURCE_OF), now_s)
            self.record(handle, job, begin, end)
            if is_short:
                get(out, WRITER, OUT_TRANSPORT).write(self.render(start_of_head, ending, window + start, stop - start))
            else:
                head = self.render(start_of_head, ending, NULL, 0)
                self.send_file(out, descriptor, head, handle, start, stop, window)
        if job is not None:
            self.cache.touch(job, now_s)
        return True

    cdef bytes render(self, bytes start_of_head, bytes ending, const char* body, Py_ssize_t body_bytes):
        """Return the head with the next request id, followed by ``body``. If ``body`` is NULL, room is left for it."""
        cdef Py_ssize_t before = PyBytes_GET_SIZE(start_of_head), after = PyBytes_GET_SIZE(ending)
        cdef uint64_t number = next(self.numbers)
        cdef bytes data = PyBytes_FromStringAndSize(NULL, before + ID_BYTES + after + body_bytes)
        cdef char* to = PyBytes_AS_STRING(data)
        cdef int digit
        memcpy(to, PyBytes_AS_STRING(start_of_head), before)
        to += before
        for digit in range(ID_BYTES - 1, -1, -1):
            to[digit] = DIGITS[number & 15]
            number >>= 4
        to += ID_BYTES
        memcpy(to, PyBytes_AS_STRING(ending), after)
        if body != NULL:
            memcpy(to + after, body, body_bytes)
        return data

    cdef int record(self, handle, job, int64_t begin, int64_t end) except -1:
        """Compiled ``AccessLog.record``: record the read in the access log."""
        cdef Py_ssize_t before
        cdef int64_t[2] part
        cdef bytearray rows
        cdef bytes row
        access_log = self.access_log
        record = get(handle, HANDLE, RECORD)
        if (
            record is None or (<tuple>record)[RECORD_JOB] is not job
            or (<tuple>record)[RECORD_KINDS] is not get(access_log, ACCESS_LOG, KINDS)
        ):
            access_log.record(handle, job, None if end == WHOLE else self.new_span(begin, end))
            return 0
        rows, row = get(access_log, ACCESS_LOG, ROWS), (<tuple>record)[RECORD_ROW]
        before = PyByteArray_GET_SIZE(rows)
        PyByteArray_Resize(rows, before + PyBytes_GET_SIZE(row))
        memcpy(PyByteArray_AS_STRING(rows) + before, PyBytes_AS_STRING(row), PyBytes_GET_SIZE(row))
        if end != WHOLE:
            part[0], part[1] = begin, end - begin
            memcpy(PyByteArray_AS_STRING(rows) + before + USE_FIRST, part, sizeof(part))
        return schedule_flush(self, rows, handle)

    cdef int send_file(
        self, out, int descriptor, bytes head, handle, Py_ssize_t start, Py_ssize_t stop, const char* window
    ) except -1:
        """Send a page or a part of it, as ``_slice_of`` of engine/read/hits.py and ``Sender.send`` do. What the client
        does not take at once is left to sender.py. Bytes that may not leave by sendfile are copied.
        """
        cdef Py_ssize_t sent, position = start
        cdef Piece piece
        cdef bint may_sendfile = handle.sendable is not None and handle.sendable[0] is not None
        file = cut_piece(handle, start, stop, window, &piece)
        if may_sendfile and (descriptor < 0 or piece.last - piece.first < self.sendfile_bytes or piece.last != stop):
            out.send(head, slice_of(self, handle, file, &piece))
            return 0
        sent = push_head(descriptor, head, &piece, &position)
        if position < stop:
            head = head[max(sent, 0):]
            out.go_on(head, position, slice_of(self, handle, file, &piece))
        return 0


cdef int ready(out) except? -2:
    """Return the descriptor by which bytes may be sent past the transport now; -1 if they must go through it."""
    cdef int descriptor = get(out, WRITER, OUT_DESCRIPTOR)
    if descriptor == UNASKED:
        descriptor = out.open()
    return descriptor if descriptor >= 0 and not get(out, WRITER, OUT_TRANSPORT).get_write_buffer_size() else -1


cdef bint may_send(handle, const char* window, Py_ssize_t start, Py_ssize_t stop) except -1:
    """Return whether the bytes [start, stop) of a page on a disk can be sent without waiting, and the page equals its
    hash if it has one.
    """
    expected = get(handle, HANDLE, BODY_HASH)
    if expected is None:
        return is_hot(window + start, stop - start)
    start, stop = get(handle, HANDLE, START), get(handle, HANDLE, STOP)
    if mapped(handle, start, stop) != window or not is_hot(window + start, stop - start):
        return False
    return xxh3_64_intdigest(PyMemoryView_FromMemory(<char*>window + start, stop - start, PyBUF_READ)) == expected


cdef bint is_hot(const char* start, Py_ssize_t size):
    """Return whether these mapped bytes are in the kernel's page cache, so that reading them does not wait."""
    cdef unsigned char[MOST_PAGES] pages
    cdef uintptr_t first = <uintptr_t>start // PAGE_BYTES * PAGE_BYTES
    cdef uintptr_t length = <uintptr_t>start + size - first
    cdef Py_ssize_t page, count = (length + PAGE_BYTES - 1) // PAGE_BYTES
    if count > MOST_PAGES or mincore(<void*>first, length, pages) != 0:
        return False
    for page in range(count):
        if not pages[page] & 1:
            return False
    return True

include "_shared.pxi"
