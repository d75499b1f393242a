"""docs/clients.md: its tables show the outcomes of each client on every route."""

import re
from pathlib import Path

import pytest

from .report import (
    CLUSTER_ROUTES,
    FAILS,
    NOT_OFFERED,
    OK,
    ROUTES,
    SAYS,
    Record,
    write_cluster_table,
    write_table,
)

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "clients.md"
CHECKS = ("upload", "download", "part", "resume", "listing", "overwrite", "sync")


def rows(text, heading):
    """Return the cells of the rows below a heading."""
    lines = text.partition(f"| {heading} |")[2].partition("\n\n")[0].split("\n")[2:]
    return [line.strip("| ").split(" | ") for line in lines]


@pytest.fixture
def note():
    """Return a function ``note(record, client, check, cell, texts)`` that records the outcomes which a table
    cell describes.
    """

    def note(record, client, check, cell, texts, *, meaning=""):
        outcomes = dict.fromkeys(ROUTES, NOT_OFFERED if cell == "not offered" else OK)
        for routes, number in re.findall(r"not ([a-z, ]+) \[(\d+)\]", cell):
            outcomes |= dict.fromkeys(routes.split(", "), texts[number])
        for route, outcome in outcomes.items():
            record.note(client, check, meaning, route, outcome)

    return note


def test_the_columns_of_routes_agree_with_the_cells_of_the_last_run(tmp_path, note):
    """The route columns of the last run agree with its cells. The test reads the outcomes from the cells of
    single checks, and writes the tables again.
    """
    text = DOCUMENT.read_text()
    table = text.partition("<!-- end -->")[0]
    texts = dict(re.findall(rf"^(\d+)\. The client ({FAILS}.*)$", table, re.MULTILINE))
    record = Record()
    said = rows(text, "client | says of a missing key")
    first = rows(text, "client | HTTP")
    assert len(first) == len(said) == 10
    for (client, *answers), (version, _http, _tls, *cells) in zip(said, first, strict=True):
        record.versions[client] = version
        for check, cell in zip(CHECKS, cells, strict=True):
            note(record, client, check, cell, texts)
        for check, answer in zip(("missing_key", "wrong_secret"), answers, strict=True):
            parts = answer.split("; ") if answer.startswith("direct") else [f"{', '.join(ROUTES)}: {answer}"]
            for routes, _, words in (part.partition(": ") for part in parts):
                for route in routes.split(", "):
                    record.note(client, check, "", route, SAYS + words)
    for number, (client, meaning, cell) in enumerate(rows(text, "client | checked beside")):
        note(record, client, f"try_{number}", cell, texts, meaning=meaning)
    copy = tmp_path / "clients.md"
    copy.write_text(text)
    write_table(record, copy)
    run = re.compile(r"^Run on .*$", re.MULTILINE)
    assert run.sub("", copy.read_text()) == run.sub("", text)


def test_what_fails_over_tls_alone_is_in_its_column(tmp_path, note):
    record, texts = Record(versions={"c": "c 1.0"}), {"1": FAILS + "TLS", "2": FAILS + "other"}
    for check in CHECKS:
        note(record, "c", check, "not tls [1]" if check in {"upload", "part"} else "yes", texts)
    for name in ("try_a", "try_b"):
        note(record, "c", name, "not tls [1]; not plain [2]", texts, meaning="a meaning")
    path = tmp_path / "page.md"
    path.write_text("<!-- written by make clients -->\n<!-- end -->\n")
    write_table(record, path)
    (row,) = rows(path.read_text(), "client | HTTP")
    assert row[:4] == [
        "c 1.0",
        "yes; not 2 beside [1]",
        "yes; not upload, part, 2 beside [2]",
        "yes; not tls [2]",
    ]
    record.outcomes = {place: dict.fromkeys(ROUTES, NOT_OFFERED) for place in record.outcomes}
    write_table(record, path)
    assert rows(path.read_text(), "client | HTTP")[0][1:4] == ["not offered"] * 3


def test_a_run_through_proxies_that_own_nothing_has_a_table_of_its_own(tmp_path):
    record = Record(versions={"c": "c 1.0", "d": "d 2.0"}, absent={"e": "no e"})
    for check in (*CHECKS, "try_a"):
        for route in CLUSTER_ROUTES:
            record.note("c", check, "a meaning", route, OK)
            bad = route == "node-tls" and check in {"sync", "try_a"}
            record.note("d", check, "a meaning", route, FAILS + "TLS" if bad else OK)
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- written by make clients CLUSTER=1 -->\nold\n<!-- end -->\nafter\n")
    write_cluster_table(record, path)
    before, *table, noted, _, after = [line for line in path.read_text().split("\n") if line][:11]
    assert (before, after) == ("before", "after")
    assert table[-3:] == [
        "| c 1.0 | yes | yes | yes |",
        "| d 2.0 | yes | yes | yes; not sync, 1 beside [1] |",
        "| e | not installed: no e |",
    ]
    assert noted == "1. The client fails with: TLS"
