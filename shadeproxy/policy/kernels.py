"""Loads the compiled kernels (_kernels.pyx), if they exist and match the sources.

Law: functions test ``COMPILED`` at each call, and objects once, when they are made. If it is False, they
compute the same results in Python. Tests compare both forms.
"""

from shadeproxy.core.compiled import is_made_of
from shadeproxy.policy.history import EDGES, GAP_GROUPS, MOST_READS, STATES

try:
    from shadeproxy.policy._kernels import (
        SOURCE,
        SOURCES,
        GhostKernels,
        HistoryKernels,
        SampleKernels,
        expose,
        gittins,
        learn_constants,
    )
except ImportError:  # No compiler was present at installation.
    COMPILED = False
else:
    COMPILED = is_made_of(SOURCE, SOURCES, __file__) and learn_constants(
        EDGES, STATES, GAP_GROUPS, MOST_READS
    )

__all__ = ["COMPILED", "GhostKernels", "HistoryKernels", "SampleKernels", "expose", "gittins"]
