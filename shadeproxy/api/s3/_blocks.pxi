# Part of _request_cache.pyx: finds the client to which a header block belongs, and the block's Range and If-Match.

cdef enum:
    NAME_BYTES = 13
    MOST_DIGITS = 15
    TIME_BYTES = 8  # THHMMSSZ
    SIGNATURE_BYTES = 64
    IF_MATCH_BYTES = 10
    MOST_ETAG = 128
    # ``_RANGE_SIGNED`` and ``_IF_MATCH_SIGNED`` of signed.py.
    RANGE_SIGNED = 1
    IF_MATCH_SIGNED = 2
    # Positions of the fields of the named tuple ``_Template`` of signed.py.
    TEMPLATE_FIXED = 0
    TEMPLATE_TIME = 1
    TEMPLATE_SIGNATURE = 2
    TEMPLATE_INVOCATION = 3
    TEMPLATE_DATE = 4
    TEMPLATE_SIGNING = 5
    TEMPLATE_PLAN = 6

cdef const char* NAMES = b"\r\nRange: bytes=\r\nrange: bytes="
cdef const char* MATCH_NAMES = b"\r\nIf-Match: \r\nif-match: "


cdef struct Cut:
    # A Range in a block: its line [start, stop) with the line break, the start of its value "bytes=...", and the first
    # and last byte that it names.
    Py_ssize_t start
    Py_ssize_t value_start
    Py_ssize_t stop
    int64_t first
    int64_t last


cdef object find_plan(
    cache, check_time, const char* block, Py_ssize_t size, bytes path, bytes range_value, bytes if_match,
    double now_s
):
    """Compiled ``RequestCache.plan``."""
    cdef PyObject* found = PyDict_GetItemWithError(
        get(get(cache, CACHE, TEMPLATES), TEMPLATES_OF, BY_LENGTH), size
    )
    if found != NULL:
        for template in <list><object>found:
            if matches((<tuple>template)[TEMPLATE_FIXED], block, size):
                if holds(<tuple>template, check_time, block, path, range_value, if_match, now_s):
                    return (<tuple>template)[TEMPLATE_PLAN]
                return None
    found = find_young(cache, PLANS, PyBytes_FromStringAndSize(block, size))
    return None if found == NULL else <object>found


cdef bint matches(tuple fixed, const char* block, Py_ssize_t size) except -1:
    cdef Py_ssize_t start, length
    cdef bytes text
    for start, text in fixed:
        length = PyBytes_GET_SIZE(text)
        if start < 0 or start + length > size or memcmp(block + start, PyBytes_AS_STRING(text), length) != 0:
            return False
    return True


cdef bint holds(
    tuple template, check_time, const char* block, bytes path, bytes range_value, bytes if_match, double now_s
) except -1:
    """Compiled ``_holds`` of signed.py, for a block that has the template's length."""
    cdef bytes amz_date, signature
    cdef tuple parts
    cdef int signed
    if not is_invocation(template[TEMPLATE_INVOCATION], block):
        return False
    date = template[TEMPLATE_DATE]
    if not date:
        return True
    if template[TEMPLATE_SIGNING] is None:
        return can_be_signed(block, template[TEMPLATE_TIME], template[TEMPLATE_SIGNATURE])
    signer, parts, signed = <tuple>template[TEMPLATE_SIGNING]
    amz_date = date + piece(block, template[TEMPLATE_TIME])
    signature = piece(block, template[TEMPLATE_SIGNATURE])
    if (signed & RANGE_SIGNED and not range_value) or (signed & IF_MATCH_SIGNED and not if_match):
        return False
    if not signed:
        canonical = b"".join((parts[0], path, parts[1], amz_date, parts[2]))
    elif signed == RANGE_SIGNED:
        canonical = b"".join((parts[0], path, parts[1], range_value, parts[2], amz_date, parts[3]))
    elif signed == IF_MATCH_SIGNED:
        canonical = b"".join((parts[0], path, parts[1], if_match, parts[2], amz_date, parts[3]))
    else:
        canonical = b"".join(
            (parts[0], path, parts[1], if_match, parts[2], range_value, parts[3], amz_date, parts[4])
        )
    if not compare_digest(signer.sign(amz_date, canonical).encode(), signature):
        return False
    try:
        check_time(amz_date.decode("latin-1"), now_s)
    except Exception:
        return False  # The Python code meets the same error, and answers it.
    return True


cdef bint can_be_signed(const char* block, tuple time, tuple signature) except -1:
    """Compiled ``well_formed`` of sigv4.py, for time and signature. The date is that of the template."""
    cdef Py_ssize_t start, stop, index
    start, stop = time
    if stop - start != TIME_BYTES or block[start] != c"T" or block[stop - 1] != c"Z":
        return False
    for index in range(start + 1, stop - 1):
        if not c"0" <= block[index] <= c"9":
            return False
    start, stop = signature
    for index in range(start, stop):
        if not (c"0" <= block[index] <= c"9" or c"a" <= block[index] <= c"f"):
            return False
    return stop - start == SIGNATURE_BYTES


cdef bint is_invocation(tuple hole, const char* block) except -1:
    """Return whether an invocation id fills the hole: ASCII letters, digits and dashes, but not dashes alone. Also
    return True if there is no hole.
    """
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


cdef bint find_range(const char* block, Py_ssize_t size, Cut* cut):
    """Find a Range that names its first and last byte, as ``cut_field`` of signed.py does. Any other Range is not
    found, and so stays in the block.
    """
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


cdef object cut_if_match(const char* block, Py_ssize_t size):
    """Compiled ``cut_field`` of signed.py, for If-Match: return the block without this field, and the ETag. Return None
    if the block has no If-Match in plain form.
    """
    cdef const char* line
    cdef Py_ssize_t start, value, stop
    cdef int name
    for name in range(2):
        line = MATCH_NAMES + name * (IF_MATCH_BYTES + 2)
        if size > IF_MATCH_BYTES and memcmp(block, line + 2, IF_MATCH_BYTES) == 0:
            start = 0
        else:
            line = <const char*>memmem(block, size, line, IF_MATCH_BYTES + 2)
            if line == NULL:
                continue
            start = line - block + 2
        value = stop = start + IF_MATCH_BYTES
        if stop >= size or block[stop] != c'"':
            return None
        stop += 1
        while stop < size and c"!" <= block[stop] <= c"~" and block[stop] != c'"' and block[stop] != c",":
            stop += 1
        if not 1 <= stop - value - 1 <= MOST_ETAG or stop + 3 > size or memcmp(block + stop, b'"\r\n', 3) != 0:
            return None
        stop += 1
        rest = PyBytes_FromStringAndSize(block, start) + PyBytes_FromStringAndSize(block + stop + 2, size - stop - 2)
        return rest, PyBytes_FromStringAndSize(block + value, stop - value)
    return None


cdef bytes piece(const char* block, tuple hole):
    cdef Py_ssize_t start, stop
    start, stop = hole
    return PyBytes_FromStringAndSize(block + start, stop - start)
