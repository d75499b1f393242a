# Part of _request_cache.pyx: reads fields of Python objects at their place in memory, without a lookup by name.
#
# A field in ``__slots__`` has the same offset in all objects of a class. A lookup by name takes some 20 ns, and several
# times as long if the client's own work on the same host has displaced the processor's caches. Law: this is faster,
# and changes nothing else. A field is read directly if its object is of the class that was given to ``learn_slots``, or
# of a direct subclass (which must not override the fields). All other fields are read by name.

cdef extern from "Python.h":
    ctypedef struct Type "PyTypeObject":
        Type* tp_base
    ctypedef struct Member "PyMemberDef":
        int type
        Py_ssize_t offset
    ctypedef struct Common "PyDescrObject":
        Type* d_type
    ctypedef struct Descriptor "PyMemberDescrObject":
        Common d_common
        Member* d_member
    Type* type_of "Py_TYPE"(object thing)
    Type PyMemberDescr_Type
    bint PyType_IsSubtype(Type* kind, Type* base)
    void Py_INCREF(object thing)
    void Py_XDECREF(PyObject* thing)

cdef extern from "structmember.h":
    int T_OBJECT_EX

cdef enum:
    # Numbers of the classes, in the order of OWNERS. Then, for each class, numbers of its fields in the order there.
    PROTOCOL, WRITER, HANDLE, CACHE, MEMO, TEMPLATES_OF, ACCESS_LOG, CLASSES
cdef enum:
    TRANSPORT, SENDER, HELD, READING, ENDING, PAUSED, BEGUN, ACTIVE
cdef enum:
    OUT_TRANSPORT, OUT_DESCRIPTOR, OUT_SLICE
cdef enum:
    START, STOP, FIRST, SLOT, STAMP, FRESH_UNTIL_S, SENDABLE, MARKED_SENT, WINDOW, CAN_WAIT, SOURCE_OF, RECORD,
    BODY_HASH
cdef enum:
    TARGETS, PLANS, PARTS, TEMPLATES
cdef enum:
    YOUNG = 0
    BY_LENGTH = 0
cdef enum:
    ROWS, TIMER, KINDS, UNREAD
    MOST_FIELDS = 13

cdef tuple OWNERS = (
    ("S3Protocol", (
        "transport", "_sender", "_held", "_reading", "_ending", "_paused", "_begun", "_active",
    )),
    ("Sender", ("transport", "descriptor", "waiting")),
    ("PageHandle", (
        "start", "stop", "first", "slot", "stamp", "fresh_until_s", "sendable", "marked_sent", "window", "can_wait",
        "source", "access_record", "body_hash",
    )),
    ("RequestCache", ("targets", "plans", "parts", "templates")),
    ("Memo", ("young",)),
    ("Templates", ("by_length",)),
    ("AccessLog", ("rows", "timer", "kinds", "unread")),
)


cdef struct Slots:
    Type* owner
    Py_ssize_t[MOST_FIELDS] places  # 0: by name

cdef Slots[CLASSES] SLOTS


def learn_slots(owner, name=""):
    """Read the fields of objects of the class ``owner`` directly from now on. ``name``: the name in OWNERS, if the
    class has another name. Return the names of the fields that are read directly.
    """
    cdef Py_ssize_t kind, field
    cdef Descriptor* descriptor
    cdef Slots* slots
    cdef bint is_own
    kind = [one for one, _ in OWNERS].index(name or owner.__name__)
    slots, learnt = &SLOTS[kind], []
    slots.owner = NULL
    memset(slots.places, 0, sizeof(slots.places))
    for field, attribute in enumerate(OWNERS[kind][1]):
        found = getattr(owner, attribute, None)
        if type_of(found) == &PyMemberDescr_Type:
            descriptor = <Descriptor*><PyObject*>found
            is_own = PyType_IsSubtype(<Type*><PyObject*>owner, descriptor.d_common.d_type)
            if is_own and descriptor.d_member.type == T_OBJECT_EX:
                slots.places[field] = descriptor.d_member.offset
                learnt.append(attribute)
    Py_INCREF(owner)  # Keep the class for ever: a new class at the same address would be mistaken for it.
    slots.owner = <Type*><PyObject*>owner
    return learnt


cdef inline PyObject** place(object thing, int kind, int field):
    """Return the address of a field of ``thing``; NULL if the field must be read by name."""
    cdef Slots* slots = &SLOTS[kind]
    cdef Type* found = type_of(thing)
    if (found == slots.owner or found.tp_base == slots.owner) and slots.places[field]:
        return <PyObject**>(<char*><PyObject*>thing + slots.places[field])
    return NULL


cdef inline object get(object thing, int kind, int field):
    cdef PyObject** at = place(thing, kind, field)
    if at != NULL and at[0] != NULL:
        return <object>at[0]
    return getattr(thing, OWNERS[kind][1][field])


cdef inline int put(object thing, int kind, int field, object value) except -1:
    cdef PyObject** at = place(thing, kind, field)
    cdef PyObject* before
    if at == NULL:
        setattr(thing, OWNERS[kind][1][field], value)
        return 0
    Py_INCREF(value)
    before, at[0] = at[0], <PyObject*>value
    Py_XDECREF(before)
    return 0


cdef const char* mapped(handle, Py_ssize_t start, Py_ssize_t stop) except? NULL:
    """Return the memory of the handle's window, or NULL if it does not hold bytes [start, stop).

    Raises ValueError for a released window: ``len`` notices that, and PyMemoryView_GET_BUFFER does not.
    """
    window = get(handle, HANDLE, WINDOW)
    if not PyMemoryView_Check(window) or start < 0 or stop < start or stop > len(window):
        return NULL
    return <const char*>PyMemoryView_GET_BUFFER(window).buf


cdef bint holds_page(residents, handle) except -1:
    """Return whether the slot of ``handle`` in ``residents`` still has its page."""
    cdef const Py_buffer* column
    cdef Py_ssize_t slot = get(handle, HANDLE, SLOT)
    cdef int64_t stamp = get(handle, HANDLE, STAMP)
    stamps = residents.stamps
    if not PyMemoryView_Check(stamps):
        return stamps[slot] == stamp
    column = PyMemoryView_GET_BUFFER(stamps)
    if column.ndim != 1 or column.itemsize != sizeof(int64_t) or not 0 <= slot < len(stamps):
        return False
    return (<int64_t*>(<char*>column.buf + slot * column.strides[0]))[0] == stamp


cdef PyObject* find_young(cache, int memo, key) except? NULL:
    """Find a key among the newer entries of one of the Memos of ``cache``."""
    return PyDict_GetItemWithError(get(get(cache, CACHE, memo), MEMO, YOUNG), key)
