# cython: language_level=3, binding=False, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Loops over columns that numpy cannot do in a few steps, or that are too short for numpy: a step of numpy on
eight numbers costs as much as this module needs for a hundred.

Laws: each function does what the Python code beside its caller does, with equal results. Columns are checked
for their length before a loop, because a loop checks no index. No function keeps what it got, except that
``GhostKernels`` keeps its columns. Nothing of shadeproxy is imported: policy/kernels.py passes the constants.
"""

cimport cython
import numpy as np

from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from libc.math cimport INFINITY, frexp, log2, rint
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

include "_hazards.pxi"
