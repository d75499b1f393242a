"""What a process may have, and how often it looks for waste: set at the start of every process."""

import gc
import resource


def raise_descriptor_limit() -> None:
    """Segments and connections are descriptors; the soft limit is often 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def collect_less() -> None:
    """Leave out of every collection what the start made, and look for cycles a tenth as often.

    Nothing that a read leaves waits for the collector (tests/app/test_collector.py), and walking 80,000
    objects of modules held the loop for 60 ms: a sixth of the CPU of a miss, and no byte for it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(7_000, 10, 10)
