"""``shadeproxy`` with a planted fault, which the first argument names."""

import itertools
import os
import sys

from shadeproxy.api.s3.request_body import LengthCoding
from shadeproxy.api.s3.server import S3Server
from shadeproxy.cli.main import run
from shadeproxy.origin.limit import Slots

_TURNS = itertools.count(1)
_take, _give, _call = LengthCoding.take, Slots.give, S3Server.__call__


def smuggle(self, data, content):
    """End a body where the text of a request begins, as if its length had been another one."""
    at = data.find(b"PUT /attack/")
    if at < 0:
        return _take(self, data, content)
    content.append(data[:at])
    self.is_over = True
    return at


def lose_slots(self, *clients):
    """Do not give every 50th slot back."""
    if next(_TURNS) % 50:
        _give(self, *clients)


def leak_descriptors(self):
    """Leave a descriptor open with every tenth connection."""
    if not next(_TURNS) % 10:
        os.dup(0)
    return _call(self)


fault = sys.argv.pop(1)
if fault == "smuggles":
    LengthCoding.take = smuggle
elif fault == "loses slots":
    Slots.give = lose_slots
elif fault == "leaks descriptors":
    S3Server.__call__ = leak_descriptors
run()
