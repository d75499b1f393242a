"""Chaos: real clients use a proxy whose origin and disk misbehave, while processes are killed.

Run it by ``make chaos``. Laws: bodies and versions are those of the soak, so every byte is checked. Faults
are injected from outside the product, which has no switch for them. An error is allowed only if S3 clients
retry after it. Every request has an upper bound of time, and exceeding the bound is a fault.
"""
