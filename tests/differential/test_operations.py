"""Forwarded operations, played at moto and through the proxies."""

from .suite import operations_are_the_origins


def test_every_operation_and_its_errors_are_the_origins(sides):
    operations_are_the_origins(sides)
