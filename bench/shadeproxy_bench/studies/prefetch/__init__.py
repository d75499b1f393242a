"""Study (e): bytes and time with prefetching, in virtual time."""
