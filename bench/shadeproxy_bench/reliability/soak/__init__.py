"""The soak: a running proxy under full load for an hour, every byte of every answer compared.

``make soak``. Laws: bodies follow from (seed, object, version), so that every process can compute the right
answer without storing it; one writer a key, so that "never older than the acknowledged version" has one
meaning; clients take every answer, count it, and never stop at the first fault; the run is judged once, at
the end, from the samples alone (``verdict``).
"""
