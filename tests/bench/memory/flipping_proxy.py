"""``shadeproxy`` with a planted fault: a bit of every upload flips on its way to the origin."""

from shadeproxy.cli.main import run
from shadeproxy.origin.upload_connection import UploadConnection

_right = UploadConnection._write


async def flipping(self, piece):
    wrong = bytearray(piece)
    if wrong:
        wrong[len(wrong) // 2] ^= 1
    await _right(self, bytes(wrong))


UploadConnection._write = flipping
run()
