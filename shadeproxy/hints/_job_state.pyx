# cython: language_level=3, binding=False, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The state of a job that each of its reads touches, and what a few reads do to it.

With many jobs, a batch of hits has two or three reads of each job. The work for each read is a few steps on a few
numbers. In Python, the calls for each job cost twenty times as much as the steps.

Laws: each function does what the Python code beside its caller does, with equal results. Lengths and numbers that are
used as an index are checked, because nothing else checks them. ``ReaderState.note`` notes all of its reads or changes
nothing. Nothing of shadeproxy is imported: job_state.py passes the constants.
"""

cimport cython
import numpy as np

from cpython.pyport cimport PY_SSIZE_T_MAX
from libc.math cimport INFINITY, fmax, fmin, pow
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t

include "_fields.pxi"
include "_few_reads.pxi"
include "_hint_columns.pxi"
