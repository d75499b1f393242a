"""``shadeproxy`` with a planted fault: every piece of an upload stays in memory."""

from shadeproxy.cli.main import run
from shadeproxy.origin.s3transport import _Sending

_KEPT = []
_right = _Sending._next


async def hoarding(self, body):
    piece = await _right(self, body)
    _KEPT.append(piece)
    return piece


_Sending._next = hoarding
run()
