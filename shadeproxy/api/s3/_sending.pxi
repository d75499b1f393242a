# Part of _request_cache.pyx: sends ranges, and bodies that leave past the transport. The bytes come from one page or
# from two. This code sends as many bytes as the client takes at once; sender.py sends the rest.

cdef extern from "<sys/socket.h>" nogil:
    ssize_t c_send "send"(int to, const void* data, size_t size, int flags)

cdef enum:
    # Bytes of a record of type USE (engine/access_records.py), which begins with "slot" and "stamp".
    USE_BYTES = 48


cdef struct Piece:
    # The bytes [start, stop) of a page's window. Of these, [first, last) may leave by sendfile from ``file``; all
    # others are copied. The same as SendfileSlice (engine/base.py).
    int file
    const char* window
    Py_ssize_t start
    Py_ssize_t first
    Py_ssize_t last
    Py_ssize_t stop


cdef inline bint is_leased(CompiledHits hits) noexcept:
    """Return whether the lease of this process still lasts. Then ``wall_s``, which is cheaper than ``now_s``, gives the
    time (``LeasedClock`` in core/clock.py).
    """
    return hits.wall_s is not None and boot_time_s() < hits.lease_until_s[0]


cdef bint is_good(CompiledHits hits, handle, double now_s) except -1:
    """Return whether ``handle`` is valid, as ``is_good`` of engine/read/hits.py does. In a worker, also return False
    after the end of the lease that the coordinator shows (engine/worker_reads.py).
    """
    if hits.is_shared and hits.lease_until_s != NULL and boot_time_s() >= hits.lease_until_s[0]:
        return False
    return now_s < <double>get(handle, HANDLE, FRESH_UNTIL_S) and holds_page(hits.residents, handle)


cdef inline void bounds(
    Py_ssize_t* start, Py_ssize_t* stop, int64_t first, int64_t begin, int64_t end
) noexcept:
    """Compiled ``PageHandle.bounds``: narrow ``[start, stop)``, the place of a page, to the object's bytes
    [begin, end). The page begins with the object's byte ``first``.
    """
    cdef Py_ssize_t page_start = start[0]
    start[0] = max(page_start + begin - first, page_start)
    stop[0] = min(page_start + end - first, stop[0])


cdef object handle_at(CompiledHits hits, ref, int64_t first, double now_s):
    """Return a valid handle of the page that holds byte ``first``, or else of the stored part that begins with it, found
    as by ``ReadsNow.find_handle``; or None.
    """
    cdef PyObject* found = NULL
    # Only find_handle looks for stored parts. In a worker, only find_handle also knows until when a later page is fresh:
    # by the page's own time of validation, or by that of the object's first page.
    if not hits.is_shared or first < hits.page_bytes:
        found = PyDict_GetItemWithError(get(hits.handles, MEMO, YOUNG), (ref, first // hits.page_bytes))
    if found != NULL and is_good(hits, <object>found, now_s):
        return <object>found
    handle = hits.find_handle(ref, first, now_s)
    return handle if handle is not None and is_good(hits, handle, now_s) else None


cdef bytes start_of_part(tuple part, int64_t first, int64_t stop, int64_t total):
    """Return the head of a 206 up to the request id, as ``PartHead.of`` makes it."""
    return b"%b%d%bbytes %d-%d/%d%b" % (
        part[PART_BEFORE], stop - first, part[PART_BETWEEN], first, stop - 1, total, part[PART_AFTER]
    )


cdef object cut_piece(handle, Py_ssize_t start, Py_ssize_t stop, const char* window, Piece* piece):
    """Fill ``piece`` as ``_slice_of`` of engine/read/hits.py does. Return its file; None if all bytes are copied."""
    cdef Py_ssize_t first = stop, last = stop
    piece.file, piece.window, piece.start, piece.stop = -1, window, start, stop
    file, sendable = None, get(handle, HANDLE, SENDABLE)
    if sendable is not None:
        file = sendable[0]
        first = max(start, <Py_ssize_t>sendable[1])
        last = max(first, min(stop, <Py_ssize_t>sendable[2]))
        if first < last:
            piece.file = file.descriptor
            if not get(handle, HANDLE, MARKED_SENT):
                file.mark_sent(sendable[1], sendable[2])
                handle.marked_sent = True
    piece.first, piece.last = first, last
    return file


cdef Py_ssize_t push(int to, const Piece* piece, Py_ssize_t position) noexcept nogil:
    """Send from ``position`` on, as ``Sender._push`` does, and return the new position. An error only ends the
    sending: the next attempt, by sender.py, meets it again and handles it.
    """
    cdef Py_ssize_t until
    cdef int64_t offset
    cdef ssize_t sent
    while position < piece.stop:
        if piece.first <= position < piece.last:
            offset = position
            sent = c_sendfile(to, piece.file, &offset, piece.last - position)
        else:
            until = piece.first if position < piece.first < piece.last else piece.stop
            sent = c_send(to, piece.window + position, until - position, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent <= 0:
            break
        position += sent
    return position


cdef Py_ssize_t push_head(int to, bytes head, const Piece* piece, Py_ssize_t* position):
    """Send ``head`` and then ``piece``. One system call takes the head, with the copied bytes before those of the file.
    Return how many bytes that call sent, or less than 0 if it failed. ``position`` is set to the end of what was sent
    of ``piece``.
    """
    cdef Py_ssize_t size = PyBytes_GET_SIZE(head), until = min(piece.first, piece.stop)
    cdef iovec[2] parts
    cdef msghdr message
    cdef ssize_t sent
    memset(&message, 0, sizeof(message))
    message.msg_iov, message.msg_iovlen = parts, 2 if piece.start < until else 1
    parts[0].iov_base, parts[0].iov_len = PyBytes_AS_STRING(head), size
    parts[1].iov_base, parts[1].iov_len = <char*>piece.window + piece.start, until - piece.start
    position[0] = piece.start
    with nogil:
        sent = sendmsg(to, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent >= size:
            position[0] = push(to, piece, piece.start + sent - size)
    return sent


cdef bint send_slices(
    CompiledHits hits, out, bytes start_of_head, handle, job, double now_s, int64_t begin, int64_t end
) except -1:
    """Answer with the object's bytes [begin, end), as ``ReadsNow.take_slices`` and ``Sender.send`` do. ``handle``,
    which ``handle_at`` has just returned, is that of the page in which they begin. They must end in it or in the next
    page. Return False, with nothing done, if those functions would do something else, or nothing.
    """
    cdef Py_ssize_t start = get(handle, HANDLE, START), stop = get(handle, HANDLE, STOP)
    cdef int64_t first = get(handle, HANDLE, FIRST), edge = first + stop - start
    cdef Py_ssize_t start_after = 0, stop_after = 0, sent, position
    cdef const char* window
    cdef const char* window_after = NULL
    cdef Piece piece, piece_after
    cdef int descriptor
    sendable, after, rest, file_after = get(handle, HANDLE, SENDABLE), None, (), None
    if sendable is None or get(handle, HANDLE, CAN_WAIT) or begin < first or begin >= edge:
        return False
    bounds(&start, &stop, first, begin, end)
    if min(stop, <Py_ssize_t>sendable[2]) - max(start, <Py_ssize_t>sendable[1]) < hits.sendfile_bytes:
        return False
    if end > edge:
        after = handle_at(hits, handle.ref, edge, now_s)
        if (
            after is None or after.sendable is None or after.can_wait or <int64_t>after.first != edge
            or after.source is not handle.source or after.meta.etag != handle.meta.etag
        ):
            return False
        start_after, stop_after = get(after, HANDLE, START), get(after, HANDLE, STOP)
        bounds(&start_after, &stop_after, edge, edge, end)
        window_after = mapped(after, start_after, stop_after)
        if window_after == NULL or stop_after - start_after != end - edge:
            return False
    window = mapped(handle, start, stop)
    descriptor = ready(out)
    if window == NULL or descriptor < 0:
        return False
    head = hits.render(start_of_head, hits.end_of_head(get(handle, HANDLE, SOURCE_OF), now_s), NULL, 0)
    hits.record(handle, job, begin, end)
    file = cut_piece(handle, start, stop, window, &piece)
    if after is not None:
        record_page(hits, after)
        file_after = cut_piece(after, start_after, stop_after, window_after, &piece_after)
    sent = push_head(descriptor, head, &piece, &position)
    if position == stop and after is not None:
        with nogil:
            position = push(descriptor, &piece_after, start_after)
        if position < stop_after:
            out.go_on(b"", position, slice_of(hits, after, file_after, &piece_after))
    elif position < stop:
        if after is not None:
            rest = (slice_of(hits, after, file_after, &piece_after),)
        out.go_on(head[max(sent, 0):], position, slice_of(hits, handle, file, &piece), *rest)
    if job is not None:
        hits.cache.touch(job, now_s)
    return True


cdef object slice_of(CompiledHits hits, handle, file, const Piece* piece):
    return hits.new_slice(handle, file, piece.start, piece.first, piece.last, piece.stop)


cdef int record_page(CompiledHits hits, handle) except -1:
    """Record that the read, which began in another page, also used the page of ``handle``. This is what
    ``AccessLog.record_pages`` does.
    """
    cdef bytearray rows = get(hits.access_log, ACCESS_LOG, ROWS)
    cdef Py_ssize_t before = PyByteArray_GET_SIZE(rows)
    cdef int64_t[2] place
    cdef char* row
    place[0], place[1] = get(handle, HANDLE, SLOT), get(handle, HANDLE, STAMP)
    PyByteArray_Resize(rows, before + USE_BYTES)
    row = PyByteArray_AS_STRING(rows) + before
    memset(row, 0, USE_BYTES)
    memcpy(row, place, sizeof(place))
    return schedule_flush(hits, rows, handle)


cdef int schedule_flush(CompiledHits hits, bytearray rows, handle) except -1:
    """Compiled end of ``AccessLog.record``: schedule a flush, unless the timer is already set to an early time."""
    access_log = hits.access_log
    if (
        get(access_log, ACCESS_LOG, TIMER) is None or <set?>get(access_log, ACCESS_LOG, UNREAD)
        or PyByteArray_GET_SIZE(rows) >= hits.most_waiting_bytes
    ):
        access_log.schedule_flush((handle.slot,))
    return 0
