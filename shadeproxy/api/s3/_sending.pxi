# Ranges, and bodies that leave past the transport, part of _known.pyx: from one page or two, as far as the
# client takes them at once. sender.py sends the rest.

cdef extern from "<sys/socket.h>" nogil:
    ssize_t c_send "send"(int to, const void* data, size_t size, int flags)

cdef enum:
    # Size of a USE (engine/access_records.py), which begins with "slot" and "stamp".
    USE_BYTES = 48


cdef struct Piece:
    # Like SendfileSlice (engine/base.py): bytes [start, stop) of a window; [first, last) may leave by sendfile.
    int file
    const char* window
    Py_ssize_t start
    Py_ssize_t first
    Py_ssize_t last
    Py_ssize_t stop


cdef bint is_good(CompiledHits hits, resident, double now_s) except -1:
    """Compiled ``Hits._is_good``."""
    return now_s < <double>get(resident, RESIDENT, FRESH_UNTIL_S) and holds_page(hits.residents, resident)


cdef object find_ticket(CompiledHits hits, ref, int64_t first, double now_s):
    """Compiled ``ReadsNow.ticket``; returns only a valid ticket."""
    cdef PyObject* found = PyDict_GetItemWithError(get(hits.tickets, MEMO, YOUNG), (ref, first // hits.page_bytes))
    if found != NULL and is_good(hits, <object>found, now_s):
        return <object>found
    ticket = hits.ticket(ref, first, now_s)
    return ticket if ticket is not None and is_good(hits, ticket, now_s) else None


cdef bytes start_of_part(tuple part, int64_t first, int64_t stop, int64_t total):
    """Return ``PartHead.of``, up to the request id."""
    return b"%b%d%bbytes %d-%d/%d%b" % (
        part[PART_BEFORE], stop - first, part[PART_BETWEEN], first, stop - 1, total, part[PART_AFTER]
    )


cdef object cut_piece(resident, Py_ssize_t start, Py_ssize_t stop, const char* window, Piece* piece):
    """Fill ``piece`` like engine/read/hits.py ``_loan``; return its file, None if the resident has no lender."""
    cdef Py_ssize_t first = stop, last = stop
    piece.file, piece.window, piece.start, piece.stop = -1, window, start, stop
    file, lender = None, get(resident, RESIDENT, LENDER)
    if lender is not None:
        file = lender[0]
        first = max(start, <Py_ssize_t>lender[1])
        last = max(first, min(stop, <Py_ssize_t>lender[2]))
        if first < last:
            piece.file = file.descriptor
            if not get(resident, RESIDENT, LENT):
                file.lend(lender[1], lender[2])
                resident.lent = True
    piece.first, piece.last = first, last
    return file


cdef Py_ssize_t push(int to, const Piece* piece, Py_ssize_t position) noexcept nogil:
    """Send like ``Sender._send_on`` from ``position``; return the new position. Errors end it, and recur."""
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
    """Send ``head``, in one call with the bytes that are copied before the file, then ``piece``. ``position``
    returns how far ``piece`` was sent. Return the sent bytes of that call; less than 0: none.
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


cdef bint send_lent(
    CompiledHits hits, out, bytes start_of_head, resident, job, double now_s, int64_t begin, int64_t end
) except -1:
    """Compiled ``ReadsNow.lend`` or ``lend_across``, and ``Sender.send`` of the result. The object's bytes
    [begin, end) begin in the page and end in it or in the next. False: nothing happened, because those
    functions would act differently or not at all. ``resident`` was just found by ``find_ticket``.
    """
    cdef Py_ssize_t page_start = get(resident, RESIDENT, START), page_stop = get(resident, RESIDENT, STOP)
    cdef int64_t first = get(resident, RESIDENT, FIRST), edge = first + page_stop - page_start
    cdef Py_ssize_t start = page_start + begin - first, stop = start + min(end, edge) - begin
    cdef Py_ssize_t start_after = 0, stop_after = 0, sent, position
    cdef const char* window
    cdef const char* window_after = NULL
    cdef Piece piece, piece_after
    cdef int descriptor
    lender, after, rest, file_after = get(resident, RESIDENT, LENDER), None, (), None
    if lender is None or get(resident, RESIDENT, CAN_WAIT) or begin < first or begin >= edge:
        return False
    if min(stop, <Py_ssize_t>lender[2]) - max(start, <Py_ssize_t>lender[1]) < hits.lend_bytes:
        return False
    if end > edge:
        after = find_ticket(hits, resident.ref, edge, now_s)
        if (
            after is None or after.lender is None or after.can_wait or <int64_t>after.first != edge
            or after.source is not resident.source or after.meta.etag != resident.meta.etag
        ):
            return False
        start_after = get(after, RESIDENT, START)
        stop_after = start_after + end - edge
        window_after = mapped(after, start_after, stop_after)
        if window_after == NULL or stop_after > <Py_ssize_t>after.stop:
            return False
    window = mapped(resident, start, stop)
    descriptor = ready(out)
    if window == NULL or descriptor < 0:
        return False
    head = hits.render(start_of_head, hits.tail(get(resident, RESIDENT, SOURCE_OF), now_s), NULL, 0)
    hits.note(resident, job, begin, end)
    file = cut_piece(resident, start, stop, window, &piece)
    if after is not None:
        note_page(hits, after)
        file_after = cut_piece(after, start_after, stop_after, window_after, &piece_after)
    sent = push_head(descriptor, head, &piece, &position)
    if position == stop and after is not None:
        with nogil:
            position = push(descriptor, &piece_after, start_after)
        if position < stop_after:
            out.go_on(b"", position, loan_of(hits, after, file_after, &piece_after))
    elif position < stop:
        if after is not None:
            rest = (loan_of(hits, after, file_after, &piece_after),)
        out.go_on(head[max(sent, 0):], position, loan_of(hits, resident, file, &piece), *rest)
    if job is not None:
        hits.known.touch(job, now_s)
    return True


cdef object loan_of(CompiledHits hits, resident, file, const Piece* piece):
    return hits.new_loan(resident, file, piece.start, piece.first, piece.last, piece.stop)


cdef int note_page(CompiledHits hits, resident) except -1:
    """Compiled ``AccessLog.add_pages`` for one page."""
    cdef bytearray rows = get(hits.notes, NOTES, ROWS)
    cdef Py_ssize_t before = PyByteArray_GET_SIZE(rows)
    cdef int64_t[2] place
    cdef char* row
    place[0], place[1] = get(resident, RESIDENT, SLOT), get(resident, RESIDENT, STAMP)
    PyByteArray_Resize(rows, before + USE_BYTES)
    row = PyByteArray_AS_STRING(rows) + before
    memset(row, 0, USE_BYTES)
    memcpy(row, place, sizeof(place))
    return tell_soon(hits, rows, resident)


cdef int tell_soon(CompiledHits hits, bytearray rows, resident) except -1:
    """Compiled end of ``AccessLog.add``: skip ``soon`` when the timer is already set early enough."""
    notes = hits.notes
    if (
        get(notes, NOTES, TIMER) is None or <set?>get(notes, NOTES, UNREAD)
        or PyByteArray_GET_SIZE(rows) >= hits.most_waiting_bytes
    ):
        notes.soon((resident.slot,))
    return 0
