"""Chaos: real clients use a proxy whose origin and disk misbehave, while processes are killed.

Run it by ``make chaos``. Laws: objects and versions are made as in the soak, so every byte of an answer can
be checked. Faults are injected from outside the product, which has no switch for them. An error is allowed
only if S3 clients retry after it. Every request has a time limit, and a request that exceeds its limit is a
fault.
"""
