"""A stand-in for the origin in tests of commands. A test sets its answers."""

from shadeproxy.core.types import ListPage

EMPTY = ListPage((), truncated=False)


class FakeOrigin:
    def __init__(self, *, probe=None, listing=EMPTY):
        self.outcome, self.listing, self.closed = probe, listing, False

    async def probe(self):
        if self.outcome is not None:
            raise self.outcome
        return "2 buckets at http://origin"

    async def list_objects(self, _bucket, _prefix, **_options):
        if isinstance(self.listing, Exception):
            raise self.listing
        return self.listing

    async def aclose(self):
        self.closed = True
