# cython: language_level=3, binding=False, boundscheck=True, wraparound=False
"""``KnownHits.answer`` (known.py) compiled: the same decisions in a third of the time.

Laws: nothing is decided here that known.py does not decide, and in the same order: what is not a plain GET of
a known page by a known client, to the byte, goes on untouched. Signatures are verified by the functions that
verify them there. Nothing of shadeproxy is imported: objects come in, and their fields are read. Named tuples are
read by position; tests/api/s3/test_compiled.py holds the positions.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from hmac import compare_digest

cdef extern from "<string.h>" nogil:  # GNU's, for which Python.h asks
    void* memmem(const void* text, size_t text_bytes, const void* part, size_t part_bytes)

cdef extern from "Python.h":
    Py_buffer* PyMemoryView_GET_BUFFER(object view)
    bint PyMemoryView_Check(object view)

cdef extern from "<sys/socket.h>" nogil:
    ssize_t c_send "send"(int descriptor, const void* data, size_t size, int flags)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL

cdef extern from "<sys/sendfile.h>" nogil:
    ssize_t c_sendfile "sendfile"(int to, int descriptor, int64_t* offset, size_t size)

cdef const char* DIGITS = b"0123456789ABCDEF"
cdef const char* VERSION = b" HTTP/1.1\r\n"
cdef const char* NAMES = b"\r\nRange: bytes=\r\nrange: bytes="
cdef enum:
    VERSION_BYTES = 11
    ID_BYTES = 16
    PARTS_WITHOUT_RANGE = 3
    PARTS_WITH_RANGE = 4
    NAME_BYTES = 13
    MOST_DIGITS = 15
    # Positions in named tuples: Known, PartHead, Plan, _Template, Noted, Lender.
    KNOWN_REF = 0
    KNOWN_PATH = 1
    KNOWN_RESIDENT = 2
    KNOWN_HEADS = 3
    PART_BEFORE = 1
    PART_BETWEEN = 2
    PART_AFTER = 3
    PLAN_JOB = 0
    PLAN_CHECKSUMS = 2
    TEMPLATE_FIXED = 0
    TEMPLATE_TIME = 1
    TEMPLATE_SIGNATURE = 2
    TEMPLATE_INVOCATION = 3
    TEMPLATE_DATE = 4
    TEMPLATE_SIGNING = 5
    TEMPLATE_PLAN = 6
    NOTED_JOB = 0
    NOTED_KINDS = 1
    NOTED_ROW = 3


cdef struct Cut:
    # A Range: its line with the end, in it "bytes=...", and what that says.
    Py_ssize_t start
    Py_ssize_t value_start
    Py_ssize_t stop
    int64_t first
    int64_t last


cdef class CompiledHits:
    """What ``known`` (KnownHits) knows; ``otherwise`` answers everything else. ``notes`` (engine/notes.py),
    ``ticket``, ``take`` and ``lend_across`` (ReadsNow): of the pages that tickets of ``known`` are for.
    ``numbers``: of requests. ``check_time``: as in signed.py. ``new_loan``: Loan. ``new_span``: Span.
    ``copy_bytes``, ``lend_bytes``: pages up to so many are copied, files are lent from so many on.
    """

    cdef object known, otherwise, notes, residents, ticket, take, lend_across
    cdef object numbers, now_s, check_time, new_loan, new_span, source
    cdef Py_ssize_t copy_bytes, lend_bytes, most_waiting_bytes
    cdef bytes source_tail
    cdef int64_t tail_second

    def __init__(
        self, known, notes, *, otherwise, ticket, take, lend_across, numbers, check_time, new_loan, new_span,
        Py_ssize_t copy_bytes, Py_ssize_t lend_bytes,
    ):
        self.known, self.otherwise = known, otherwise
        self.notes, self.residents = notes, notes.residents
        self.ticket, self.take, self.lend_across, self.new_span = ticket, take, lend_across, new_span
        self.numbers, self.now_s, self.check_time, self.new_loan = numbers, known.now_s, check_time, new_loan
        self.copy_bytes, self.lend_bytes = copy_bytes, lend_bytes
        self.most_waiting_bytes = notes.most_waiting_bytes
        self.source, self.source_tail, self.tail_second = None, b"", -1

    def answer(self, bytes raw not None, out not None):
        """As ``FastLane.answer``."""
        return True if self.find(raw, out) else self.otherwise(raw, out)

    cdef bint find(self, bytes raw, out) except -1:
        cdef const char* text = PyBytes_AS_STRING(raw)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(raw), begin
        cdef const char* space
        cdef double now_s
        cdef PyObject* found
        cdef bytes target
        cdef Cut cut
        if size < 5 or memcmp(text, b"GET /", 5) != 0:
            return False
        space = <const char*>memchr(text + 4, c" ", size - 4)
        if space == NULL:
            return False
        begin = space - text + VERSION_BYTES
        if begin > size or memcmp(space, VERSION, VERSION_BYTES) != 0:
            return False
        target = PyBytes_FromStringAndSize(text + 4, space - text - 4)
        found = PyDict_GetItemWithError(self.known.targets.young, target)
        if found == NULL:
            return False
        known = <tuple><object>found
        now_s = self.now_s()
        if find_range(text + begin, size - begin, &cut):
            return self.find_part(out, known, target, text + begin, size - begin, cut, now_s)
        resident = known[KNOWN_RESIDENT]
        if resident is None:
            return False
        plan = self.plan(text + begin, size - begin, known[KNOWN_PATH], b"", now_s)
        if plan is None:
            return False
        head = known[KNOWN_HEADS][1 if (<tuple>plan)[PLAN_CHECKSUMS] else 0]
        return self.send(out, head, resident, (<tuple>plan)[PLAN_JOB], now_s, None)

    cdef bint find_part(
        self, out, tuple known, bytes target, const char* block, Py_ssize_t size, Cut cut, double now_s
    ) except -1:
        """``KnownHits._answer_range``, of a range with both ends."""
        cdef bytes rest, value
        cdef int64_t total, stop
        rest = PyBytes_FromStringAndSize(NULL, size - (cut.stop - cut.start))
        memcpy(PyBytes_AS_STRING(rest), block, cut.start)
        memcpy(PyBytes_AS_STRING(rest) + cut.start, block + cut.stop, size - cut.stop)
        value = PyBytes_FromStringAndSize(block + cut.value_start, cut.stop - 2 - cut.value_start)
        plan = self.plan(PyBytes_AS_STRING(rest), PyBytes_GET_SIZE(rest), known[KNOWN_PATH], value, now_s)
        ticket = None if plan is None else self.ticket(known[KNOWN_REF], cut.first, now_s)
        if ticket is None:
            return False
        meta = ticket.meta
        total = meta.size
        stop = min(cut.last + 1, total)
        if cut.first >= stop:
            return False
        part = self.known.part_head(target, meta, value.decode())
        if part is None:
            return False
        head = (
            (<tuple>part)[PART_BEFORE] + b"%d" % (stop - cut.first) + (<tuple>part)[PART_BETWEEN]
            + b"bytes %d-%d/%d" % (cut.first, stop - 1, total) + (<tuple>part)[PART_AFTER]
        )
        span, job = self.new_span(cut.first, stop), (<tuple>plan)[PLAN_JOB]
        if ticket.holds(span):
            return self.send(out, head, ticket, job, now_s, span)
        loans = self.lend_across(ticket, job, now_s, span)
        if loans is None:
            return False
        out.send(self.render(head, self.tail(ticket.source, now_s), NULL, 0), *loans)
        if job is not None:
            self.known.touch(job, now_s)
        return True

    cdef object plan(self, const char* block, Py_ssize_t size, bytes path, bytes range_value, double now_s):
        """``KnownHits.plan``."""
        cdef PyObject* found = PyDict_GetItemWithError(self.known.templates.by_length, size)
        if found != NULL:
            for template in <list><object>found:
                if self.matches((<tuple>template)[TEMPLATE_FIXED], block, size):
                    if self.holds(<tuple>template, block, path, range_value, now_s):
                        return (<tuple>template)[TEMPLATE_PLAN]
                    return None
        found = PyDict_GetItemWithError(self.known.plans.young, PyBytes_FromStringAndSize(block, size))
        return None if found == NULL else <object>found

    cdef bint matches(self, tuple fixed, const char* block, Py_ssize_t size) except -1:
        cdef Py_ssize_t start, length
        cdef bytes text
        for start, text in fixed:
            length = PyBytes_GET_SIZE(text)
            if start < 0 or start + length > size or memcmp(block + start, PyBytes_AS_STRING(text), length) != 0:
                return False
        return True

    cdef bint holds(
        self, tuple template, const char* block, bytes path, bytes range_value, double now_s
    ) except -1:
        """signed.py ``_holds``; the template is one of a block as long as this."""
        cdef bytes amz_date, signature
        cdef tuple parts
        if not self.is_invocation(template[TEMPLATE_INVOCATION], block):
            return False
        date = template[TEMPLATE_DATE]
        if not date:
            return True
        if template[TEMPLATE_SIGNING] is None:
            return False  # for known.py
        signer, parts = <tuple>template[TEMPLATE_SIGNING]
        amz_date = date + piece(block, template[TEMPLATE_TIME])
        signature = piece(block, template[TEMPLATE_SIGNATURE])
        if len(parts) == PARTS_WITHOUT_RANGE:
            canonical = b"".join((parts[0], path, parts[1], amz_date, parts[2]))
        elif len(parts) == PARTS_WITH_RANGE and range_value:
            canonical = b"".join((parts[0], path, parts[1], range_value, parts[2], amz_date, parts[3]))
        else:
            return False
        if not compare_digest(signer.sign(amz_date, canonical).encode(), signature):
            return False
        try:
            self.check_time(amz_date.decode("latin-1"), now_s)
        except Exception:
            return False  # known.py meets it again
        return True

    cdef bint is_invocation(self, tuple hole, const char* block) except -1:
        """Whether it holds ASCII letters, digits and dashes, and not dashes alone; or there is none."""
        cdef Py_ssize_t start, stop, index
        cdef bint any_other = False
        cdef char at
        start, stop = hole
        for index in range(start, stop):
            at = block[index]
            if c"0" <= at <= c"9" or c"a" <= at <= c"z" or c"A" <= at <= c"Z":
                any_other = True
            elif at != c"-":
                return False
        return any_other or not stop

    cdef bytes tail(self, source, double now_s):
        """``KnownHits.tail``, remembered for the source that was asked for last."""
        cdef int64_t second = <int64_t>now_s
        if source is not self.source or second != self.tail_second:
            self.source, self.source_tail, self.tail_second = source, self.known.tail(source, now_s), second
        return self.source_tail

    cdef bint send(self, out, bytes start_of_head, resident, job, double now_s, span) except -1:
        """``KnownHits._send``, and what it asks of engine/hits.py. ``span``: within the page; None: all of it."""
        cdef Py_ssize_t start = resident.start, stop = resident.stop, first
        cdef bint is_short = stop - start <= self.copy_bytes
        cdef const char* text
        cdef bytes head, tail
        lender = resident.lender
        if lender is None and not is_short:
            body = self.take(resident, job, now_s, span)  # it has to be pinned
            if body is None:
                return False
            head = self.render(start_of_head, self.tail(resident.source, now_s), NULL, 0)
            out.transport.writelines((head, body))
        else:
            if self.residents.stamps[resident.slot] != resident.stamp or now_s >= <double>resident.fresh_until_s:
                return False
            if resident.can_wait and not resident.tier.is_hot(resident.location):
                return False
            if span is not None:
                first = start - <Py_ssize_t>resident.first
                start, stop = first + <Py_ssize_t>span[0], first + <Py_ssize_t>span[1]
            view = resident.window
            if start < 0 or stop < start or stop > <Py_ssize_t>view.nbytes or not PyMemoryView_Check(view):
                return False
            text = <const char*>PyMemoryView_GET_BUFFER(view).buf
            tail = self.tail(resident.source, now_s)
            self.note(resident, job, span)
            if lender is None:
                out.transport.write(self.render(start_of_head, tail, text + start, stop - start))
            else:
                head = self.render(start_of_head, tail, NULL, 0)
                self.lend(out, head, resident, <tuple>lender, start, stop, text)
        if job is not None:
            self.known.touch(job, now_s)
        return True

    cdef bytes render(self, bytes start_of_head, bytes tail, const char* body, Py_ssize_t body_bytes):
        """The head with the next request id, and ``body``."""
        cdef Py_ssize_t before = PyBytes_GET_SIZE(start_of_head), after = PyBytes_GET_SIZE(tail)
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
        memcpy(to, PyBytes_AS_STRING(tail), after)
        if body_bytes:
            memcpy(to + after, body, body_bytes)
        return data

    cdef int note(self, resident, job, span) except -1:
        """``Notes.add``."""
        cdef Py_ssize_t before
        cdef bytearray rows
        cdef bytes row
        notes = self.notes
        noted = resident.noted
        if (
            span is not None or noted is None
            or (<tuple>noted)[NOTED_JOB] is not job or (<tuple>noted)[NOTED_KINDS] is not notes.kinds
        ):
            notes.add(resident, job, span)
            return 0
        rows, row = notes.rows, (<tuple>noted)[NOTED_ROW]
        before = PyByteArray_GET_SIZE(rows)
        PyByteArray_Resize(rows, before + PyBytes_GET_SIZE(row))
        memcpy(PyByteArray_AS_STRING(rows) + before, PyBytes_AS_STRING(row), PyBytes_GET_SIZE(row))
        if notes.timer is None or <set>notes.unread or PyByteArray_GET_SIZE(rows) >= self.most_waiting_bytes:
            notes.soon((resident.slot,))
        return 0

    cdef int lend(
        self, out, bytes head, resident, tuple lender, Py_ssize_t start, Py_ssize_t stop, const char* window
    ) except -1:
        """engine/hits.py ``_loan``, and ``Sender.send`` of it as far as the client takes it at once."""
        cdef Py_ssize_t first, last, lead_bytes
        cdef int descriptor = out.descriptor, source
        cdef bint is_lent
        cdef int64_t position
        cdef ssize_t sent
        cdef const char* text
        file = lender[0]
        first, last = max(start, <Py_ssize_t>lender[1]), min(stop, <Py_ssize_t>lender[2])
        last = max(first, last)
        if first < last:
            file.lend(first, last)
        loan = self.new_loan(resident, file, start, first, last, stop)
        is_lent = descriptor >= 0 and last == stop and last - first >= self.lend_bytes
        if not is_lent or out.transport.get_write_buffer_size():
            out.send(head, loan)
            return 0
        if first != start:
            head = head + PyBytes_FromStringAndSize(window + start, first - start)
        source, text, lead_bytes = file.descriptor, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head)
        position = first
        with nogil:
            sent = c_send(descriptor, text, lead_bytes, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent == lead_bytes:
                while position < last and c_sendfile(descriptor, source, &position, last - position) > 0:
                    pass
        if sent != lead_bytes or position < last:
            # Whatever it was: who goes on meets it again.
            out.go_on(head[max(sent, 0):], position, loan)
        return 0


cdef bint find_range(const char* block, Py_ssize_t size, Cut* cut):
    """signed.py ``cut_range``, of a range with both ends; of others False, though they stay in the block."""
    cdef const char* line
    cdef int name
    for name in range(2):
        line = NAMES + name * (NAME_BYTES + 2)
        if size > NAME_BYTES and memcmp(block, line + 2, NAME_BYTES) == 0:
            cut.start = 0
        else:
            line = <const char*>memmem(block, size, line, NAME_BYTES + 2)
            if line == NULL:
                continue
            cut.start = line - block + 2
        cut.value_start = cut.start + NAME_BYTES - 6
        return find_ends(block, size, cut)
    return False


cdef bint find_ends(const char* block, Py_ssize_t size, Cut* cut):
    cdef Py_ssize_t at = cut.start + NAME_BYTES, digits
    cdef int64_t value
    cdef int end
    for end in range(2):
        value = digits = 0
        while at < size and c"0" <= block[at] <= c"9":
            value, digits, at = value * 10 + (block[at] - c"0"), digits + 1, at + 1
            if digits > MOST_DIGITS:
                return False
        if not digits:
            return False
        if end:
            cut.last = value
        else:
            cut.first = value
            if at >= size or block[at] != c"-":
                return False
            at += 1
    cut.stop = at + 2
    return cut.stop <= size and memcmp(block + at, b"\r\n", 2) == 0


cdef bytes piece(const char* block, tuple hole):
    cdef Py_ssize_t start, stop
    start, stop = hole
    return PyBytes_FromStringAndSize(block + start, stop - start)
