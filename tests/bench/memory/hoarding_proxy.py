"""``shadeproxy`` with a planted fault: every piece of an upload stays in memory."""

from shadeproxy.cli.main import run
from shadeproxy.origin.upload_connection import UploadConnection

_KEPT = []
_right = UploadConnection._write


async def hoarding(self, piece):
    _KEPT.append(piece)
    await _right(self, piece)


UploadConnection._write = hoarding
run()
