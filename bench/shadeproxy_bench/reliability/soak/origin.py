"""The soak's origin, a process of its own: an S3 server that stores only the version of each object.

It answers GET and HEAD (whole, one range, If-Match), PutObject, ListObjectsV2 and ListBuckets. In a
PutObject, ``x-amz-meta-version`` names the version whose body must follow. Any other body is refused, so that
writes are checked too. The process prints its port first.
"""

import argparse
from bisect import bisect_right
from urllib.parse import parse_qs, quote, unquote

import uvloop

from shadeproxy_bench.listening import serve
from shadeproxy_bench.reliability.kit.bodies import BUCKET, DataSet
from shadeproxy_bench.reliability.kit.origin import (
    Fields,
    OriginConnection,
    Parts,
    answer_of,
    document,
    error_of,
    list_buckets_of,
    object_of,
)

_DATE = "2026-01-01T00:00:00.000Z"
_PATH = f"/{BUCKET}"
_MOST_KEYS = 1000


class SoakOrigin:
    """The present versions of the objects, which all connections share."""

    def __init__(self, data: DataSet, latency_s: float) -> None:
        self.data = data
        self.latency_s = latency_s
        self.versions = [0] * len(data)
        self._sorted = sorted(data.keys)

    def body(self, number: int) -> memoryview:
        return self.data.body(number, self.version(number))

    def version(self, number: int) -> int:
        """Return the present version of an object."""
        return self.versions[number]

    def put(self, number: int, version: int, body: bytes) -> bool:
        """Make ``version`` the present one, if ``body`` is the body of this version. Return whether it is."""
        if body != bytes(self.data.body(number, version)):
            return False
        self.versions[number] = version
        return True

    def tag(self, number: int) -> str:
        return self.data.tag(number, self.version(number))

    def listing(self, query: str) -> bytes:
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        prefix, most = asked.get("prefix", ""), min(int(asked.get("max-keys", _MOST_KEYS)), _MOST_KEYS)
        first = bisect_right(self._sorted, asked.get("start-after", ""))
        found = [key for key in self._sorted[first:] if key.startswith(prefix)]
        rows = []
        for key in found[:most]:
            number = self.data.number_of(key)
            assert number is not None
            tag = self.tag(number).replace('"', "&quot;")
            rows.append(
                f"<Contents><Key>{quote(key)}</Key><LastModified>{_DATE}</LastModified>"
                f"<ETag>{tag}</ETag><Size>{self.data.sizes[number]}</Size>"
                "<StorageClass>STANDARD</StorageClass></Contents>"
            )
        truncated = str(len(found) > most).lower()
        return document(
            f"<ListBucketResult><Name>{BUCKET}</Name>"
            f"<EncodingType>url</EncodingType><IsTruncated>{truncated}</IsTruncated>{''.join(rows)}"
            "</ListBucketResult>"
        )


class SoakConnection(OriginConnection):
    """One connection to the soak's origin."""

    def __init__(self, origin: SoakOrigin) -> None:
        super().__init__(origin.latency_s)
        self._origin = origin

    def answer(self, method: str, target: str, fields: Fields, body: bytes) -> Parts:
        """Return head and body of the answer to one request."""
        path, _, query = target.partition("?")
        origin = self._origin
        if path in {"/", _PATH, _PATH + "/"}:
            listing = list_buckets_of(BUCKET) if path == "/" else origin.listing(query)
            return answer_of("200 OK", listing, {"Content-Type": "application/xml"})
        number = origin.data.number_of(unquote(path.removeprefix(_PATH + "/")))
        if number is None:
            return error_of("404 Not Found", "NoSuchKey", method)
        if method == "PUT":
            if not origin.put(number, int(fields.get("x-amz-meta-version", "-1")), body):
                return error_of("400 Bad Request", "BadDigest", method)
            return answer_of("200 OK", b"", {"ETag": origin.tag(number)})
        return object_of(method, origin.body(number), origin.tag(number), fields)


def main(connection: type[SoakConnection] = SoakConnection) -> None:
    parser = argparse.ArgumentParser(description="The origin of a soak.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True, help="of the data set")
    parser.add_argument("--latency", type=float, default=0.002, help="seconds before each answer")
    options = parser.parse_args()
    origin = SoakOrigin(DataSet(options.seed, options.bytes), options.latency)
    uvloop.run(serve(lambda: connection(origin)))


if __name__ == "__main__":
    main()
