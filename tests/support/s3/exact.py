"""HTTP requests that are sent without any normalisation."""

import asyncio
import http.client
from urllib.parse import urlsplit


async def send(url, method="GET", body=None, **fields):
    """Send a request exactly as given. Return (status, fields, body) of the answer."""

    def ask():
        parts = urlsplit(url)
        line = http.client.HTTPConnection(parts.netloc, timeout=20)
        line.request(method, url.partition(parts.netloc)[2], body, fields)
        answer = line.getresponse()
        text = answer.read()
        line.close()
        return answer.status, answer.headers, text

    return await asyncio.to_thread(ask)
