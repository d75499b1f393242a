"""The same read at moto and at the proxy: cold, then warm, then warm again on one connection, both plain and
over TLS. ``make test-rgw`` compares more examples, with another origin.
"""

from .suite import keys_are_the_origins, reads_are_the_origins


def test_reads_in_every_form_are_the_origins(sides):
    reads_are_the_origins(sides, examples=50 if sides.alone else 15)


def test_keys_in_every_spelling_are_the_origins(sides):
    keys_are_the_origins(sides, examples=15 if sides.alone else 5)
