"""What the operating system lets a process have. Every process of the product asks for it at its start."""

import resource


def raise_descriptor_limit() -> None:
    """Segments and connections are descriptors; the soft limit is often 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
