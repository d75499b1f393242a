"""``GET /``: the page that shows the proxy in a browser.

Laws: the page is one document and loads no other file. Its Content-Security-Policy has the hashes of its own
scripts and styles, so that the browser runs no others. The document contains no number and no secret, so it
is served without the token. Its script asks the user for the token, and sends it with the calls that it makes
(ADR 51).
"""

import base64
import hashlib
from importlib.resources import files

from aiohttp import web

from shadeproxy.api.control.context import ControlContext

_STYLES = ("uplot.min.css", "page.css")
_SCRIPTS = {"uplot": "uplot.min.js", "show": "show.js", "charts": "charts.js", "page": "page.js"}


def _text_of(name: str) -> str:
    return files("shadeproxy.api.control").joinpath("page", name).read_text(encoding="utf-8")


def _source_of(text: str) -> str:
    """Return the expression of a Content-Security-Policy that allows exactly ``text``."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _make() -> tuple[bytes, str]:
    """Return the document and its Content-Security-Policy."""
    page, styles = _text_of("page.html"), "".join(map(_text_of, _STYLES))
    scripts = {place: _text_of(name) for place, name in _SCRIPTS.items()}
    for place, text in {"styles": styles, **scripts}.items():
        page = page.replace("{{" + place + "}}", text)
    allowed = " ".join(map(_source_of, scripts.values()))
    policy = (
        f"default-src 'none'; style-src {_source_of(styles)}; script-src {allowed}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page.encode(), policy


_PAGE, _POLICY = _make()


async def dashboard(_context: ControlContext, _request: web.Request) -> web.Response:
    headers = {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return web.Response(body=_PAGE, content_type="text/html", charset="utf-8", headers=headers)
