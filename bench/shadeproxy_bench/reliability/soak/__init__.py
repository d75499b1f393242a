"""The soak: a running proxy under full load for an hour, every byte of every answer compared.

``make soak``. Laws: bodies follow from (seed, object, version), so that every process knows what must come
and nobody stores it; one writer a key, so that "never older than what was acknowledged" has one meaning;
clients take whatever they are sent, count it, and never stop at the first fault; what was found is judged
once, at the end, from the samples alone (``verdict``).
"""
