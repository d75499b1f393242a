"""Header fields of forms: what browsers write, what cannot be understood, and that neither costs much."""

import pytest

from shadeproxy.api.s3.upload.form import Form, boundary_of
from shadeproxy.core.errors import InvalidRequest

DISPOSITION = b"Content-Disposition: form-data; "


async def read(disposition):
    """Return the fields and the file name of a form whose file has these header lines."""
    body = b"--X\r\n" + disposition + b"\r\n\r\nv\r\n--X--\r\n"

    async def source():
        yield body

    form = Form(source(), b"X", len(body))
    await form.read_fields()
    return form.fields, form.filename


@pytest.mark.parametrize(
    ("line", "filename"),
    [
        (b'name="file"; filename="a b.png"', "a b.png"),
        (b'name="file"; filename="a;b=\'c.png"', "a;b='c.png"),
        (rb'name="file"; filename="a\"b.png"', 'a"b.png'),
        (rb'name="file"; filename="C:\dir\a.png"', "a.png"),
        (b"name=file;filename=a.png", "a.png"),
        (b'NAME="file" ; FileName="\xc3\xa4.png"', "\xe4.png"),
        (b'name="file"; filename="first"; filename="second"', "first"),
        (b"name=\"file\"; filename*=UTF-8''a.png", ""),
        (b' ; name = "file" ;; filename\t=\t"a.png" ; ', "a.png"),
        (b'name="file"', ""),
    ],
)
async def test_names_of_files_as_browsers_write_them(line, filename):
    assert await read(DISPOSITION + line) == ({}, filename)


@pytest.mark.parametrize(
    "lines",
    [
        b"",
        b"Content-Type: text/plain",
        DISPOSITION,
        DISPOSITION + b'name=""',
    ],
)
async def test_a_part_without_a_name_is_refused(lines):
    with pytest.raises(InvalidRequest, match="no name"):
        await read(lines)


@pytest.mark.parametrize(
    "line",
    [
        b'name="file"; filename="not closed',
        b"name=file; filename=a b.png",
        b'name="file',
        b'= ; name="file"',
        b'name="file"; flag',
        b'name="file"; filename="a"b.png"',
    ],
)
async def test_a_parameter_that_cannot_be_understood_is_refused(line):
    with pytest.raises(InvalidRequest, match="has a parameter that cannot be understood"):
        await read(DISPOSITION + line)


@pytest.mark.timeout(5)
@pytest.mark.parametrize("filler", [b";", b"\\\\", b'\\"', b" ", b"a=b;", b'"', b"; a"])
async def test_a_long_field_of_a_part_takes_little_time(filler):
    """A parser whose time grows with the square of the length needs from 13 s to minutes for these."""
    long = filler * (60_000 // len(filler))
    for line in (b'name="0' + long + b'"', b'name="0"; a="' + long, b'x="' + long + b'"; name="0"'):
        with pytest.raises(InvalidRequest):
            await read(DISPOSITION + line)


@pytest.mark.timeout(5)
def test_a_long_content_type_takes_little_time():
    for filler in (";", "\\\\", '\\"', " ", "a=b;", '"', "; a"):
        with pytest.raises(InvalidRequest):
            boundary_of(f'multipart/form-data; boundary="{filler * (60_000 // len(filler))}"')


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=X", b"X"),
        ('Multipart/Form-Data;charset=utf-8;Boundary="a b"', b"a b"),
        ("multipart/mixed; boundary=X", None),
        ("text/plain; that is none", None),
        ("text/plain", None),
        ("", None),
    ],
)
def test_the_boundary_of_a_form(content_type, boundary):
    assert boundary_of(content_type) == boundary


@pytest.mark.parametrize("rest", ["", "; boundary=", "; boundary*=utf-8''X", "; boundary=a$", '; boundary="'])
def test_a_boundary_that_is_none_is_refused(rest):
    with pytest.raises(InvalidRequest, match=r"names no valid boundary|has a parameter"):
        boundary_of(f"multipart/form-data{rest}")
