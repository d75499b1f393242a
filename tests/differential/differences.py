"""The list of permitted differences between the origin's answer and the proxy's, each with its reason.

docs/semantics.md, "Differences from the origin", names every entry, and test_documents.py checks this.
Everything else is compared byte for byte.
"""

IGNORED_FIELDS: dict[str, str] = {
    "date": "the moment of the answer",
    "x-amz-request-id": "names the request",
    "x-amzn-requestid": "names the request, at some servers",
    "x-amz-id-2": "names the host that answered",
    "server": "the origin's software: a hit does not come from it",
    "connection": "belongs to one connection",
    "keep-alive": "belongs to one connection",
    "x-shade-cache": "the proxy's own",
    "x-shade-node": "names the proxy of a cluster that answered in place of the asked one",
}
"""Fields that are never compared, in lower case."""

ERROR_FIELDS: dict[str, str] = {
    "content-length": "an error document names its request",
    "transfer-encoding": "an error document may be sent in chunks",
    "content-type": "servers write application/xml in several ways",
    "retry-after": "the proxy always tells when to come back",
    "accept-ranges": "says nothing about an error",
    "access-control-allow-origin": "without an Origin in the request it says nothing",
}
"""Fields that are not compared either in answers with status 400 or above. The Code in the error document is
compared.
"""

NAMED: dict[str, str] = {
    "conditions and ranges": "where servers disagree, the proxy answers as RFC 9110 says",
    "206": "carries no checksum: there is one of the whole object alone",
    "304": "carries ETag, Last-Modified and what else RFC 9110 section 15.4.5 asks to repeat",
    "412": "carries no field of the object",
    "416": "carries Content-Range with the object's size",
}
"""Differences that concern more than one field. compare.py makes a special comparison for each of them."""
