# Part of _request_cache.pyx: counts its hits and their durations, separately by source, and for whole objects and
# ranges. ``CompiledHits.take_tallies`` passes the counts on to telemetry/requests.py, where RequestCache counts the
# hits of the Python code.

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec* to)
    int CLOCK_MONOTONIC
    int CLOCK_BOOTTIME

cdef enum:
    OF_DISK = 2
    OF_PART = 1
    TALLIES = 4
    MOST_BOUNDS = 32


cdef struct Tally:
    uint64_t requests
    double seconds
    uint64_t[33] buckets  # one for each of MOST_BOUNDS, and one for longer durations


cdef inline double monotonic_s() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec * 1e-9


cdef inline double boot_time_s() noexcept nogil:
    """Compiled core/clock.py ``boot_time_s``."""
    cdef timespec now
    clock_gettime(CLOCK_BOOTTIME, &now)
    return now.tv_sec + now.tv_nsec * 1e-9


cdef int count_hit(CompiledHits hits, double started_s) except -1:
    """Count the hit that was just answered."""
    cdef double took_s = monotonic_s() - started_s
    cdef Tally* tally = &hits.tallies[(0 if hits.source is hits.ram else OF_DISK) + (OF_PART if hits.is_part else 0)]
    cdef int place = 0
    while place < hits.bounds and took_s > hits.bounds_s[place]:
        place += 1
    tally.requests += 1
    tally.seconds += took_s
    tally.buckets[place] += 1
    hits.answered += 1
    return 0
