# Part of _request_cache.pyx: answers hits in a worker. The pages are the coordinator's and may change at any time. So
# bytes are copied out of the segments, and sent only if the slot's stamp is the same after the copy
# (engine/worker_reads.py).

cdef extern from "<sys/uio.h>" nogil:
    ssize_t preadv2(int descriptor, const iovec* parts, int count, int64_t offset, int flags)
    int RWF_NOWAIT

cdef extern from "<stdlib.h>" nogil:
    void* realloc(void* memory, size_t size)
    void free(void* memory)

cdef enum:
    # Longest body that is sent past the transport.
    MOST_DIRECT_BYTES = 4194304
    # With the body, the start of its record (header and metadata) is read again. A start longer than this is rare: then
    # the hit is left to the Python code.
    MOST_START_BYTES = 4096


@cython.binding(True)
def worker_data_received(protocol, data):
    """Answer ``data`` if it is one whole request and the connection is free for it. Pass all else to ``receive`` of
    relay.py.
    """
    cdef CompiledWorkerHits hits
    cdef double started_s
    if (
        type(data) is bytes and protocol._lane == OURS and not protocol._held and protocol.writer is not None
        and not (protocol._paused or protocol._ending or protocol.writer.transport.is_closing())
    ):
        hits = protocol.hits
        started_s = monotonic_s()
        if hits.find(data, protocol.writer):
            count_hit(hits, started_s)
            protocol.note_hit()
            return
    protocol.receive(data)


cdef class CompiledWorkerHits(CompiledHits):
    """Answers requests in a worker. ``lease``: a memoryview of one f64, the time (seconds since boot) until which pages
    may be sent; None: they may always be sent. ``longest``: a memoryview of one i64, the length of the longest body
    that may be sent now. The other arguments are those of ``CompiledHits``.
    """

    # Long bodies are copied here and sent at once. All of them use this memory, so it stays in the processor's caches.
    cdef char* scratch
    cdef Py_ssize_t scratch_bytes
    cdef const int64_t* longest_bytes
    cdef object longest

    def __init__(self, cache, access_log, handles, *, lease, longest, **options):
        CompiledHits.__init__(self, cache, access_log, handles, lease=lease, **options)
        if not PyMemoryView_Check(longest) or longest.nbytes != sizeof(int64_t):
            raise ValueError("the longest body is no memory of one i64")
        self.longest, self.longest_bytes = longest, <const int64_t*>PyMemoryView_GET_BUFFER(longest).buf
        self.is_shared = True

    def __dealloc__(self):
        free(self.scratch)

    cdef bint send(
        self, out, bytes start_of_head, handle, job, double now_s, int64_t begin, int64_t end
    ) except -1:
        """Compiled ``RequestCache._send``, with the functions of engine/worker_reads.py that it calls."""
        cdef Py_ssize_t start = get(handle, HANDLE, START), stop = get(handle, HANDLE, STOP), page_start = start, room
        cdef bytes data, ending
        cdef bint is_direct
        cdef int descriptor = -1
        cdef char* body
        if not is_good(self, handle, now_s):
            return False
        if end != WHOLE:
            bounds(&start, &stop, get(handle, HANDLE, FIRST), begin, end)
        room = stop - start
        if room > self.longest_bytes[0]:
            return False
        ending = self.end_of_head(get(handle, HANDLE, SOURCE_OF), now_s)
        if self.copy_bytes < room <= MOST_DIRECT_BYTES:
            descriptor = out.open()
        is_direct = descriptor >= 0 and not out.transport.get_write_buffer_size() and make_room(self, room)
        data = self.render(start_of_head, ending, NULL, 0 if is_direct else room)
        body = self.scratch if is_direct else PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data) - room
        expected = get(handle, HANDLE, BODY_HASH)
        if expected is not None and end != WHOLE:
            return False  # A part cannot be checked alone.
        if not copy_record(handle, start, room, start == page_start, body) or not holds_page(self.residents, handle):
            return False
        if expected is not None and xxh3_64_intdigest(PyMemoryView_FromMemory(body, room, PyBUF_READ)) != expected:
            return False
        self.record(handle, job, begin, end)
        if is_direct:
            push_copy(out.transport, descriptor, data, body, room)
        else:
            out.transport.write(data)
        if job is not None:
            self.cache.touch(job, now_s)
        return True


cdef bint make_room(CompiledWorkerHits hits, Py_ssize_t size) noexcept:
    """Make ``scratch`` at least ``size`` bytes long. Return False if there is no memory."""
    cdef char* longer
    if size > hits.scratch_bytes:
        longer = <char*>realloc(hits.scratch, size)
        if longer == NULL:
            return False
        hits.scratch, hits.scratch_bytes = longer, size
    return True


cdef int push_copy(transport, int to, bytes head, const char* body, Py_ssize_t size) except -1:
    """Send as much of ``head`` and of the ``size`` bytes of ``body`` as the client takes at once. The transport sends
    the rest. If sending fails, nothing is done about it here, because the transport meets the same error.
    """
    cdef Py_ssize_t head_bytes = PyBytes_GET_SIZE(head)
    cdef iovec[2] parts
    cdef msghdr message
    cdef ssize_t sent
    memset(&message, 0, sizeof(message))
    message.msg_iov, message.msg_iovlen = parts, 2
    parts[0].iov_base, parts[0].iov_len = PyBytes_AS_STRING(head), head_bytes
    parts[1].iov_base, parts[1].iov_len = <char*>body, size
    with nogil:
        sent = sendmsg(to, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
    sent = max(sent, 0)
    if sent < head_bytes:
        transport.write(head[sent:] + PyBytes_FromStringAndSize(body, size))
    elif sent < head_bytes + size:
        transport.write(PyBytes_FromStringAndSize(body + sent - head_bytes, head_bytes + size - sent))
    return 0


cdef bint copy_record(handle, Py_ssize_t start, Py_ssize_t size, bint with_header, char* to) except -1:
    """Copy ``size`` bytes of a record, from its byte ``start`` on, to ``to``. Return False if reading them would wait.
    ``with_header``: also read the record's header, and return False if it is not the one that the handle has.
    """
    cdef char[MOST_START_BYTES] before
    cdef iovec[2] parts
    cdef int descriptor = handle.descriptor, flags = RWF_NOWAIT if get(handle, HANDLE, CAN_WAIT) else 0
    cdef int64_t offset = handle.offset
    cdef Py_ssize_t skipped = start if with_header else 0
    cdef bytes header = handle.header
    cdef ssize_t copied
    if skipped > MOST_START_BYTES or size < 0 or PyBytes_GET_SIZE(header) > MOST_START_BYTES:
        return False
    parts[0].iov_base, parts[0].iov_len = before, skipped
    parts[1].iov_base, parts[1].iov_len = to, size
    with nogil:
        copied = preadv2(descriptor, parts, 2, offset + start - skipped, flags)
    if copied != skipped + size:
        return False
    return not with_header or memcmp(before, PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header)) == 0
