"""Chaos: real clients before a proxy whose origin and disk misbehave while processes are killed.

``make chaos``. Laws: bodies and versions are those of the soak, so every byte is checked; a fault is injected
from outside the product, which has no switch for it; an error is allowed only where S3 clients understand it
and retry; every request has an upper bound of time, and exceeding it is a fault.
"""
