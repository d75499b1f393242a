"""ListObjects V1 and V2: prefix, delimiter, markers and tokens over ``Store.scan``.

A continuation token is the last key or common prefix of the answer, in URL-safe base64. So the proxy need not
remember the token, which stays valid after a restart.
"""

import base64
from dataclasses import dataclass, field

from shadeproxy.core.errors import OriginAnswer
from shadeproxy.core.types import ListEntry
from shadeproxy.origin.base import ForwardRequest, ForwardResponse
from shadeproxy.origin.s3ops.answers import document, element, text
from shadeproxy.origin.s3ops.buckets import OWNER
from shadeproxy.origin.s3ops.query import bounded_int, encode_key, parse_query, url_encoder
from shadeproxy.origin.s3ops.store import RESERVED, Store

MAX_KEYS = 1000
_LAST_CHARACTER = "\U0010ffff"
_SMALL_BATCH = 16


@dataclass(slots=True)
class Listing:
    """The contents of one page of a listing. ``last``: the key or common prefix after which the next page
    begins.
    """

    entries: list[ListEntry] = field(default_factory=list)
    common_prefixes: list[str] = field(default_factory=list)
    last: str = ""
    truncated: bool = False

    @property
    def count(self) -> int:
        return len(self.entries) + len(self.common_prefixes)


async def list_v1(store: Store, request: ForwardRequest) -> ForwardResponse:
    """Answer ListObjects. The answer has a NextMarker only if there is a delimiter, as the API page says."""
    query = parse_query(request.raw_query)
    marker = query.get("marker", "")
    listing = await _collect(store, request.ref.bucket, query, marker)
    _, encode = url_encoder(query)
    head = [text("Marker", encode_key(marker, encode=encode))]
    if listing.truncated and query.get("delimiter"):
        head.append(text("NextMarker", encode_key(listing.last, encode=encode)))
    return document("ListBucketResult", [*head, *_common(request, query, listing, owner=True)])


async def list_v2(store: Store, request: ForwardRequest) -> ForwardResponse:
    """Answer ListObjectsV2."""
    query = parse_query(request.raw_query)
    token, start_after = query.get("continuation-token"), query.get("start-after", "")
    after = _decode_token(token) if token else start_after
    listing = await _collect(store, request.ref.bucket, query, after)
    _, encode = url_encoder(query)
    head = [text("KeyCount", listing.count)]
    if token:
        head.append(text("ContinuationToken", token))
    if start_after:
        head.append(text("StartAfter", encode_key(start_after, encode=encode)))
    if listing.truncated:
        head.append(text("NextContinuationToken", _encode_token(listing.last)))
    owner = query.get("fetch-owner") == "true"
    return document("ListBucketResult", [*head, *_common(request, query, listing, owner=owner)])


async def _collect(store: Store, bucket: str, query: dict[str, str], last: str) -> Listing:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    max_keys = bounded_int(query, "max-keys", MAX_KEYS, high=MAX_KEYS)
    listing = Listing(last=last)
    is_common = delimiter and last.endswith(delimiter) and last.startswith(prefix) and len(last) > len(prefix)
    after = last + _LAST_CHARACTER if is_common else last
    # Keys under a common prefix are skipped. So when a prefix appears in a batch, the rest of that batch was
    # scanned in vain. Begin with a small batch, and enlarge it as long as no prefix appears.
    batch = _SMALL_BATCH if delimiter else max_keys + 1
    while True:
        page = await store.scan(bucket, prefix, after, batch)
        jumped = False
        for entry in page.entries if max_keys and not prefix.startswith(RESERVED) else ():
            if entry.key <= after:
                continue
            if listing.count == max_keys:
                listing.truncated = True
                return listing
            cut = entry.key.find(delimiter, len(prefix)) if delimiter else -1
            if cut < 0:
                listing.entries.append(entry)
                listing.last = after = entry.key
            else:
                listing.last = entry.key[: cut + len(delimiter)]
                listing.common_prefixes.append(listing.last)
                after, jumped = listing.last + _LAST_CHARACTER, True
        if not page.truncated or not max_keys:
            return listing
        batch = _SMALL_BATCH if jumped else min(2 * batch, MAX_KEYS + 1)


def _common(request: ForwardRequest, query: dict[str, str], listing: Listing, *, owner: bool) -> list[str]:
    encoding, encode = url_encoder(query)
    parts = [
        text("Name", request.ref.bucket),
        text("Prefix", encode_key(query.get("prefix", ""), encode=encode)),
        text("MaxKeys", bounded_int(query, "max-keys", MAX_KEYS, high=MAX_KEYS)),
        text("IsTruncated", "true" if listing.truncated else "false"),
    ]
    if query.get("delimiter"):
        parts.append(text("Delimiter", encode_key(query["delimiter"], encode=encode)))
    if encoding:
        parts.append(text("EncodingType", encoding))
    parts.extend(
        element(
            "Contents",
            text("Key", encode_key(entry.key, encode=encode)),
            text("LastModified", entry.last_modified),
            text("ETag", entry.etag),
            text("Size", entry.size),
            OWNER if owner else "",
            text("StorageClass", "STANDARD"),
        )
        for entry in listing.entries
    )
    parts.extend(
        element("CommonPrefixes", text("Prefix", encode_key(common, encode=encode)))
        for common in listing.common_prefixes
    )
    return parts


def _encode_token(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _decode_token(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token).decode()
    except ValueError:
        raise OriginAnswer(400, "InvalidArgument", "The continuation token provided is incorrect.") from None
