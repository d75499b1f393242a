# cython: language_level=3, binding=False, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Reads the usual head of an origin's answer, and renders the usual head of an answer to a client.

Laws: each function returns what the Python code beside its caller returns, or None. None means that the head is
unusual, and that the caller must take the Python code, which also finds what is wrong. Nothing of shadeproxy is
imported, see core/heads.py.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Check
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from libc.string cimport memcmp, memcpy

cdef extern from "Python.h":
    object PyUnicode_New(Py_ssize_t size, Py_UCS4 most)
    void* PyUnicode_DATA(object text)
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    bint PyUnicode_CheckExact(object text)

cdef extern from "strings.h":
    int strncasecmp(const char* one, const char* other, size_t count)

cdef enum:
    MOST_FIELDS = 64
    MOST_NAME_BYTES = 2048
    MOST_HEAD_BYTES = 16384  # Longer heads are unusual.
    MOST_SHAPES = 64

# Kinds of bytes: those that a name may contain (a token of RFC 9110), and those that a value may contain.
cdef unsigned char KINDS[256]
cdef enum:
    NAME = 1
    VALUE = 2

cdef void _fill_kinds():
    cdef int one
    for one in range(256):
        KINDS[one] = VALUE if one == 9 or 32 <= one < 127 else 0
    for one in b"!#$%&'*+.^_`|~-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz":
        KINDS[one] |= NAME

_fill_kinds()


cdef str _text(const char* start, Py_ssize_t length):
    """Return a text of ASCII bytes."""
    text = PyUnicode_New(length, 127)
    memcpy(PyUnicode_DATA(text), start, length)
    return <str>text


cdef class HeadReader:
    """Reads heads of answers with a body of known length. ``places_of``: returns the places of fields by their
    names. ``is_kept``: returns whether the connection goes on, by version and options. ``new_head``: makes the
    result of its fields.
    """

    cdef object _places_of, _is_kept, _new_head, _head
    cdef dict _shapes  # By the names of the fields: these names, their places, and those of length and connection.

    def __init__(self, *, places_of, is_kept, head):
        self._places_of, self._is_kept, self._head = places_of, is_kept, head
        self._new_head = tuple.__new__
        self._shapes = {}

    cdef tuple _shape(self, bytes block):
        cdef tuple names = tuple(block.decode("ascii").rstrip(":").split(":"))
        places = self._places_of(*names)
        usual = len(places.lengths) == 1 and not places.codings
        if len(self._shapes) >= MOST_SHAPES:
            self._shapes.clear()
        shape = self._shapes[block] = names, places, places.lengths[0] if usual else -1, places.connection
        return shape

    def read(self, data, Py_ssize_t held):
        """Return the head in the first ``held`` bytes of ``data``; None if it is not complete, or unusual."""
        cdef const char* text
        cdef Py_ssize_t at, start, stop, field = 0, named = 0, length_at, length = 0, most
        cdef Py_ssize_t starts[MOST_FIELDS]
        cdef Py_ssize_t stops[MOST_FIELDS]
        cdef char names[MOST_NAME_BYTES]
        cdef int status
        cdef bint is_current
        cdef unsigned char byte
        cdef PyObject* found
        cdef tuple shape, fields, pair
        if PyByteArray_Check(data):
            text = PyByteArray_AS_STRING(data)
        elif PyBytes_Check(data):
            text = PyBytes_AS_STRING(data)
        else:
            return None
        most = min(held, len(data), MOST_HEAD_BYTES) - 2  # So two bytes may be read after any that is looked at.
        if most < 16 or memcmp(text, b"HTTP/1.", 7) or text[7] not in b"01" or memcmp(text + 8, b" 20", 3):
            return None
        if text[11] != c"0" and text[11] != c"6":
            return None
        status, is_current = (200 if text[11] == c"0" else 206), text[7] == c"1"
        at = 12
        if text[at] == c" ":
            while at < most and KINDS[<unsigned char>text[at]] & VALUE:
                at += 1
        if at >= most or text[at] != c"\r" or text[at + 1] != c"\n":
            return None
        at += 2
        while at < most and text[at] != c"\r":
            start = at
            while at < most and KINDS[<unsigned char>text[at]] & NAME:
                at += 1
            stop = at - start
            if at >= most or not stop or text[at] != c":" or field == MOST_FIELDS or named + stop >= MOST_NAME_BYTES:
                return None
            memcpy(names + named, text + start, stop + 1)
            named += stop + 1
            at += 1
            while at < most and (text[at] == c" " or text[at] == c"\t"):
                at += 1
            start = at
            while at < most and KINDS[<unsigned char>text[at]] & VALUE:
                at += 1
            if at >= most or text[at] != c"\r" or text[at + 1] != c"\n":
                return None
            stop = at
            while stop > start and (text[stop - 1] == c" " or text[stop - 1] == c"\t"):
                stop -= 1
            starts[field], stops[field] = start, stop
            field += 1
            at += 2
        if at > most or not field or text[at] != c"\r" or text[at + 1] != c"\n":
            return None
        block = PyBytes_FromStringAndSize(names, named)
        found = PyDict_GetItem(self._shapes, block)
        shape = self._shape(block) if found is NULL else <tuple>found
        length_at = shape[2]
        if length_at < 0 or not 0 < stops[length_at] - starts[length_at] <= 18:
            return None
        for start in range(starts[length_at], stops[length_at]):
            byte = <unsigned char>text[start]
            if not c"0" <= byte <= c"9":
                return None
            length = length * 10 + byte - c"0"
        headers = PyTuple_New(field)
        for start in range(field):
            pair = (<tuple>shape[0])[start], _text(text + starts[start], stops[start] - starts[start])
            Py_INCREF(pair)
            PyTuple_SET_ITEM(headers, start, pair)
        is_kept = is_current
        if shape[3]:
            options = "".join([f",{headers[place][1].lower()}" for place in shape[3]])
            is_kept = self._is_kept(is_current, options)
        fields = (status, headers, shape[1], length, True, False, is_kept, False, at + 2)
        return self._new_head(self._head, fields)


cdef class _Text:
    """A head that is being rendered. ``size`` < 0: it is unusual."""

    cdef char bytes[MOST_HEAD_BYTES]
    cdef Py_ssize_t size

    cdef inline void add(self, const char* start, Py_ssize_t length):
        if self.size < 0:
            return
        if self.size + length > MOST_HEAD_BYTES:
            self.size = -1
            return
        memcpy(self.bytes + self.size, start, length)
        self.size += length

    cdef inline void add_text(self, object text):
        """Add a text that may come from the origin. Only ASCII without control characters is usual."""
        cdef const unsigned char* start
        cdef Py_ssize_t length, place
        if not PyUnicode_CheckExact(text) or not PyUnicode_IS_COMPACT_ASCII(text):
            self.size = -1
            return
        start, length = <const unsigned char*>PyUnicode_DATA(text), PyUnicode_GET_LENGTH(text)
        for place in range(length):
            if not KINDS[start[place]] & VALUE:
                self.size = -1
                return
        self.add(<const char*>start, length)

    cdef inline void add_field(self, object name, object value):
        self.add_text(name)
        self.add(b": ", 2)
        self.add_text(value)
        self.add(b"\r\n", 2)

    cdef bytes ended(self, str id2, str request_id, str date, object source):
        """Add the fields that every answer has; return the head, or None if it is unusual."""
        self.add_field("x-amz-id-2", id2)
        self.add_field("x-amz-request-id", request_id)
        self.add_field("Date", date)
        self.add(b"x-shade-cache: ", 15)
        self.add(<const char*>PyUnicode_DATA(source), PyUnicode_GET_LENGTH(source))
        self.add(b"\r\n\r\n", 4)
        return None if self.size < 0 else PyBytes_FromStringAndSize(self.bytes, self.size)


cdef _Text OUT = _Text()


cdef inline bint _is(object name, const char* other, Py_ssize_t length):
    return PyUnicode_GET_LENGTH(name) == length and not strncasecmp(<const char*>PyUnicode_DATA(name), other, length)


cdef inline bint _is_own(object name):
    return _is(name, b"date", 4) or _is(name, b"x-amz-id-2", 10) or _is(name, b"x-amz-request-id", 16)


def render(str start, tuple headers, *, str id2, str request_id, str date, object source):
    """Return the head with the status line ``start``, the fields ``headers`` and those that every answer has. None:
    a field is unusual, or is one that every answer has, or there is no Content-Length.
    """
    cdef bint has_length = False
    cdef tuple field
    OUT.size = 0
    OUT.add_text(start)
    OUT.add(b"\r\n", 2)
    for field in headers:
        OUT.add_field(<object>PyTuple_GET_ITEM(field, 0), <object>PyTuple_GET_ITEM(field, 1))
        if OUT.size < 0 or _is_own(<object>PyTuple_GET_ITEM(field, 0)):
            return None
        has_length = has_length or _is(<object>PyTuple_GET_ITEM(field, 0), b"content-length", 14)
    return OUT.ended(id2, request_id, date, source) if has_length else None


def render_whole(
    tuple headers, str etag, Py_ssize_t size, bint checksums, *, str id2, str request_id, str date, object source
):
    """Return the head of a 200 for a whole object with ``headers``; None as ``render``."""
    cdef tuple field
    cdef object name
    OUT.size = 0
    OUT.add(b"HTTP/1.1 200 OK\r\n", 17)
    for field in headers:
        name = <object>PyTuple_GET_ITEM(field, 0)
        if not PyUnicode_CheckExact(name) or not PyUnicode_IS_COMPACT_ASCII(name) or _is_own(name):
            return None
        if (
            _is(name, b"accept-ranges", 13) or _is(name, b"content-length", 14) or _is(name, b"content-range", 13)
            or _is(name, b"etag", 4)
            or (not checksums and PyUnicode_GET_LENGTH(name) >= 15
                and not strncasecmp(<const char*>PyUnicode_DATA(name), b"x-amz-checksum-", 15))
        ):
            continue
        OUT.add_field(name, <object>PyTuple_GET_ITEM(field, 1))
    OUT.add(b"Accept-Ranges: bytes\r\n", 22)
    if etag:
        OUT.add_field("ETag", etag)
    OUT.add_field("Content-Length", str(size))
    return OUT.ended(id2, request_id, date, source)
