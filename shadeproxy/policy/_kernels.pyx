# cython: language_level=3, binding=False, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Loops over columns that numpy cannot do in a few steps, or that are too short for numpy: a step of numpy on
eight numbers costs as much as this module needs for a hundred.

Laws: each function does what the Python code beside its caller does, with equal results. Lengths and numbers
that are used as an index are checked, because nothing else checks them. No function keeps what it got, except
that classes keep their columns. Nothing of shadeproxy is imported: policy/kernels.py passes the constants.
"""

cimport cython
import numpy as np

from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from libc.math cimport INFINITY, frexp, log2, rint
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

include "_hazards.pxi"
include "_ghosts.pxi"
include "_histories.pxi"
include "_sample.pxi"
