"""``shadeproxy`` with a planted fault: with every tenth connection a descriptor stays open."""

import itertools
import os

from shadeproxy.api.s3.server import S3Server
from shadeproxy.cli.main import run

_TURNS = itertools.count(1)
_right = S3Server.__call__


def leaking(self):
    if next(_TURNS) % 10 == 0:
        os.dup(0)
    return _right(self)


S3Server.__call__ = leaking
run()
