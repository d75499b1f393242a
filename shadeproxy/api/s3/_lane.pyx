# cython: language_level=3
"""Hits that are known, compiled; lane.py does without it where it is not there."""


cdef class KnownHits:
    pass
