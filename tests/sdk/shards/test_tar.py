import gzip
import io
import tarfile

import pytest

import shadeproxy_sdk as shade
from tests.support.shards import tar_of


def samples(count, *, size=700, start=0):
    return [
        (f"train/{number:05d}.{extension}", bytes([number % 256, len(extension)]) * size)
        for number in range(start, start + count)
        for extension in ("jpg", "cls", "seg.png")
    ]


def read_all(client, manifest):
    return [shade.tar_members(data) for data in client.read_many(manifest, range(len(manifest)))]


def expected(files):
    found = {}
    for name, body in files:
        folder, _, file = name.rpartition("/")
        base, _, extension = file.partition(".")
        found.setdefault(f"{folder}/{base}" if folder else base, {})[extension] = body
    return [{"__key__": key, **members} for key, members in found.items()]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_samples_of_several_shards_are_read_by_range(client, put, form):
    first, second = samples(7), samples(5, start=7)
    put(**{"a/0.tar": tar_of(first, format=form), "a/1.tar": tar_of(second, format=form), "a/x.json": b"{}"})
    manifest = shade.tar_manifest(client, bucket="shards", prefix="a/")
    assert len(manifest) == 12
    assert read_all(client, manifest) == expected(first + second)
    data = shade.S3Dataset(client, manifest=manifest, decode=shade.tar_members)
    assert data[8] == (expected(second)[1], 8)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_too_long_for_a_header_stay_whole(client, put, form):
    folder = "d" * 120 + "/" + "é" * 90
    files = [(f"{folder}/{number}.{own}", b"x" * number) for number in range(5) for own in ("jpg", "txt")]
    put(**{"long.tar": tar_of(files, format=form)})
    assert read_all(client, shade.tar_manifest(client, bucket="shards")) == expected(files)


def test_what_is_no_file_of_a_sample_is_passed_over(client, put):
    files = samples(2)
    mixed = [("train", None), *files[:1], ("README", b"no dot"), *files[1:], ("train/._00001.jpg", b"mac")]
    put(**{"m.tar": tar_of(mixed)})
    assert read_all(client, shade.tar_manifest(client, bucket="shards")) == expected(files)


def test_one_extension_is_the_file_itself(client, put):
    files = samples(6)
    put(**{"m.tar": tar_of(files)})
    manifest = shade.tar_manifest(client, bucket="shards", extension="seg.png")
    bodies = [body for name, body in files if name.endswith(".seg.png")]
    assert client.read_many(manifest, range(6)) == bodies
    assert manifest.name != shade.tar_manifest(client, bucket="shards").name


def test_a_sample_without_the_extension_is_told(client, put):
    put(**{"m.tar": tar_of([*samples(1), ("train/9.jpg", b"")])})
    with pytest.raises(
        shade.ConfigError, match=r"'train/9' in s3://shards/m.tar has no file .* 'cls', but jpg"
    ):
        shade.tar_manifest(client, bucket="shards", extension="cls")


def test_keys_choose_the_shards_and_their_order(client, put):
    put(**{f"{n}.tar": tar_of(samples(2, start=10 * n)) for n in range(3)})
    manifest = shade.tar_manifest(client, bucket="shards", keys=["2.tar", "0.tar"])
    assert [entry.key for entry in manifest] == ["2.tar", "2.tar", "0.tar", "0.tar"]
    with pytest.raises(shade.ConfigError, match=r"s3://shards/7\.tar does not exist"):
        shade.tar_manifest(client, bucket="shards", keys=["7.tar"])
    with pytest.raises(shade.ConfigError, match="keys is empty"):
        shade.tar_manifest(client, bucket="shards", keys=[])


def ranges(proxy):
    return [tuple(map(int, h["range"][6:].split("-"))) for _, _, h in proxy.reads if "range" in h]


def test_small_files_take_few_requests_and_bodies_of_big_ones_are_not_read(client, proxy, put):
    put(**{"small.tar": tar_of(samples(1000, size=50))})
    shade.tar_manifest(client, bucket="shards", keys=["small.tar"])
    assert len(ranges(proxy)) < 10
    proxy.reads.clear()
    put(**{"big.tar": tar_of(samples(4, size=1 << 20))})
    shade.tar_manifest(client, bucket="shards", keys=["big.tar"])
    assert sum(stop + 1 - start for start, stop in ranges(proxy)) < 1 << 20


def damaged(body, at):
    return body[:at] + b"\xff" * 100 + body[at + 100 :]


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (gzip.compress, "is not a whole uncompressed tar .* pack it without compression"),
        (lambda body: body[: len(body) // 2 - 100], "ends within 'train/"),
        (lambda body: damaged(body, 6 * 512), "is damaged at byte 3072"),
        (lambda body: body[:1000], "ends within|is not a whole"),
        (lambda _: b"", "is not a whole"),
        (lambda _: tar_of([("a.jpg", b"1"), ("a.jpg", b"2")]), "has 'a.jpg' twice in a row"),
        (lambda _: tar_of([("README", b"1")]), "hold no samples"),
    ],
)
def test_what_cannot_be_numbered_is_refused(client, put, spoil, text):
    put(**{"t.tar": spoil(tar_of(samples(3, size=200)))})
    with pytest.raises(shade.ConfigError, match=text):
        shade.tar_manifest(client, bucket="shards")


def test_sparse_files_are_refused(client, put):
    member, packed = tarfile.TarInfo("hole.bin"), io.BytesIO()
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 512
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(member, io.BytesIO(bytes(512)))
    put(**{"t.tar": packed.getvalue()})
    with pytest.raises(
        shade.ConfigError, match=r"'hole.bin' in s3://shards/t.tar is sparse: pack it without"
    ):
        shade.tar_manifest(client, bucket="shards")


def test_a_prefix_without_tars_is_told(client, put):
    put(**{"a.txt": b""})
    with pytest.raises(shade.ConfigError, match=r"no object under s3://shards/a that ends in '\.tar'"):
        shade.tar_manifest(client, bucket="shards", prefix="a")


def test_a_manifest_can_be_made_without_a_proxy(make_client, origin):
    origin.put("shards", **{"t.tar": tar_of(samples(3))})
    client = make_client("http://127.0.0.1:9", origin=shade.Origin(origin.url))
    assert read_all(client, shade.tar_manifest(client, bucket="shards")) == expected(samples(3))


def test_the_samples_of_a_tar_that_ends_without_a_mark(client, put):
    packed = io.BytesIO(tar_of(samples(2))).getvalue().rstrip(b"\0")
    put(**{"t.tar": packed + bytes(-len(packed) % 512)})
    assert read_all(client, shade.tar_manifest(client, bucket="shards")) == expected(samples(2))
