"""Chaos: real clients before a proxy whose origin and disk misbehave while processes are killed.

``make chaos``. Laws: bodies and versions are those of the soak, so every byte is compared with the truth; a
fault is injected from outside the product, which has no switch for it; an error is allowed only where S3
clients understand it and ask again; every request has an upper bound of time, and one beyond it is a fault.
"""
