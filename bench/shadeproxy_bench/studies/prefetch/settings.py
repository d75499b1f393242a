"""The settings of the study of prefetching. ``FAST``: only the origin's latency limits the loop. ``SLOW``:
the link limits the loop, and the cache is far smaller than ``prefetch.ahead``.
"""

from shadeproxy_bench.studies.prefetch.model import Setting

FAST = (
    Setting("50 ms", 1024, 8000, 256.0, 0.05, batch=16, epochs=3),
    Setting("5 ms", 1024, 8000, 256.0, 0.005, batch=16, epochs=3),
    Setting("20 ms, cache of 10%", 600, 4000, 400.0, 0.02, cached=0.1, workers=2, batch=16),
)
SLOW = (
    *(
        Setting(f"{link} MB/s, cache of {cached:.0%}", 1024, 8000, 512.0, 0.02, link * 1e6, cached, 4, 16, 3)
        for link in (1, 2, 3)
        for cached in (0.05, 0.2)
    ),
    Setting("1 MB/s, cache of 5%, workers far apart", 1024, 8000, 512.0, 0.02, 1e6, 0.05, 8, 32, 3),
)
