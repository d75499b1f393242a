"""``shadeproxy`` with a planted fault: a bit of every upload flips on its way to the origin."""

from shadeproxy.cli.main import run
from shadeproxy.origin.s3transport import _Sending

_right = _Sending._next


async def flipping(self, body):
    piece = await _right(self, body)
    if not piece:
        return piece
    wrong = bytearray(piece)
    wrong[len(wrong) // 2] ^= 1
    return bytes(wrong)


_Sending._next = flipping
run()
