"""Names are made of the words of docs/glossary.md.

This holds for classes and modules, of which no two share a name. A word that was replaced by another one is
in no name at all, not even in that of an attribute or a parameter.
"""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "shadeproxy/engine", "shadeproxy/hints", "shadeproxy/tiers", "shadeproxy/prefetch", "shadeproxy/api",
    "shadeproxy/cluster", "sdk/shadeproxy_sdk",
)  # fmt: skip
LINE = re.compile(r"- \*\*(?P<word>[^*]+)\*\*: (?P<meaning>.+?\.)(?: Before: (?P<before>[^.]+)\.)?")
PLAIN_WORDS = """
    abort address admin allow announce api app apply arrival ask authenticate bad base begin
    broken browser build built bulk busy cluster collate companion compile complete config
    context copy count cross decision decode delete direct document draw drop durable encode end
    envelope erase failure field file flying follow forbidden forget form found freeze from granted
    halt has header heartbeat held host huggingface id integer item keep kind known latency leave
    left length level lightning limit line list mds media merge message meta meter mixin name
    nothing now observe once one openapi outgoing outlet overdue own pack parameter pass path peer
    position post prepare propose protocol purge put query readiness ready recent redis refuse
    report revalidate s3 scan script sdk seed semantics sent serve service setting shade shadeproxy
    side sign sigv2 sigv4 silence silent site spec stack status step sum system tar tensor
    tfrecord throttle time touch train type uncounted unpack unreachable unsupported vector verify
    wait want watch withdraw work
""".split()  # noqa: SIM905 - as a list it takes a line a word
PLAIN = frozenset(PLAIN_WORDS)
NO_SUBJECT = re.compile(
    r"(as|at|by|for|from|how|in|of|on|what|whatever|where|who|whoever|whose|why)\b", re.IGNORECASE
)
"""Words with which no docstring begins, because they name no action and no thing."""
RETIRED = set(
    """
    anew brain courier disowned door gate halfway knowledge landing lend lender lent loan loans newcomer
    nobody noted notes outlasting settling stranger stray strays terms ticket tickets trend truth
    """.split()  # noqa: SIM905 - as above
)
"""Words that no name contains, because the glossary has other words for the things that they named."""


def words_of(name: str) -> list[str]:
    """Return the words that make up a name in CamelCase or snake_case."""
    return re.findall(r"[A-Z]+[0-9]*(?![a-z])|[A-Z]?[a-z0-9]+", name)


def entries() -> list[re.Match[str]]:
    lines = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    matches = [LINE.fullmatch(line) for line in lines if line.startswith("-")]
    assert None not in matches, "a line of the glossary is not: - **word**: meaning. Before: word."
    return [one for one in matches if one is not None]


@cache
def names() -> dict[str, set[str]]:
    """Return the names of all classes and modules, private ones too, each with the files that define it."""
    found: dict[str, set[str]] = defaultdict(set)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            file = str(path.relative_to(ROOT))
            found[path.parent.name if path.stem == "__init__" else path.stem].add(file)
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found[node.name].add(file)
    return found


def identifiers() -> dict[str, set[str]]:
    """Return all names in the code, each with the files that have it: names of classes, functions,
    parameters, keywords, attributes and variables.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case (
                        ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name)
                    ):
                        pass
                    case ast.arg(arg=name) | ast.keyword(arg=str(name)):
                        pass
                    case ast.Attribute(attr=name) | ast.Name(id=name):
                        pass
                    case _:
                        continue
                found[name].add(str(path.relative_to(ROOT)))
    return found


@cache
def docstrings() -> dict[str, str]:
    """Return the docstrings of product and bench, with those of attributes. The keys are file and line."""
    return {
        f"{path.relative_to(ROOT)}:{node.lineno}": node.value.value
        for package in ("shadeproxy", "sdk/shadeproxy_sdk", "bench/shadeproxy_bench")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def forms(word: str) -> set[str]:
    """Return a word and the forms that English makes of it: plural, -ed, -ing, -er, -or."""
    stems = {word, word + word[-1], word.removesuffix("e"), word.removesuffix("y") + "i"}
    return {word} | {stem + end for stem in stems for end in ("s", "es", "ed", "ing", "er", "or")}


ENTRIES = entries()
SAID = {word.lower() for one in ENTRIES for word in re.findall(r"\w+", one["word"])}
FORMS = {form for word in SAID | PLAIN for form in forms(word)}


def test_a_word_has_one_line_and_one_meaning():
    said = [one["word"] for one in ENTRIES]
    assert len(said) > 100
    assert [word for word in said if said.count(word) > 1] == []


def test_the_lines_of_a_section_are_in_order():
    for section in (ROOT / "docs" / "glossary.md").read_text().split("\n## ")[1:]:
        said = [line.split("**")[1].lower() for line in section.splitlines() if line.startswith("- ")]
        assert said == sorted(said)


def test_names_are_made_of_the_words():
    strange = {
        name: sorted(files)
        for name, files in names().items()
        if any(word.lower() not in FORMS for word in words_of(name))
    }
    assert strange == {}, "say it with a word of docs/glossary.md, or give it a line there"


def test_the_plain_words_are_needed():
    assert sorted(PLAIN) == PLAIN_WORDS
    assert sorted(PLAIN & SAID) == []
    used = {word.lower() for name in names() for word in words_of(name)}
    assert [word for word in PLAIN_WORDS if not forms(word) & used] == []


def test_things_of_one_name_are_one_thing():
    said = {one["word"].lower().replace(" ", "") for one in ENTRIES}
    shared = {
        name: sorted(files)
        for name, files in names().items()
        if name[0].isupper() and len(files) > 1 and not {name.lower(), name.lower().removesuffix("s")} & said
    }
    assert shared == {}


def test_words_that_were_replaced_are_in_no_name():
    old = {phrase for one in ENTRIES for phrase in (one["before"] or "").split(", ")} - {
        one["word"] for one in ENTRIES
    }
    found = {
        name: sorted(files)
        for name, files in names().items()
        if any(f" {phrase} " in f" {' '.join(words_of(name)).lower()} " for phrase in old if phrase)
    }
    assert found == {}


def test_words_that_were_replaced_are_in_no_attribute_parameter_or_variable():
    found = {
        name: sorted(files)
        for name, files in identifiers().items()
        if RETIRED & {word.lower() for word in words_of(name)}
    }
    assert found == {}, "docs/glossary.md has the word"


def test_a_docstring_begins_with_an_action_or_a_thing():
    found = docstrings()
    assert len(found) > 4000
    assert [place for place, text in found.items() if NO_SUBJECT.match(text)] == []


def test_docstrings_say_who_acts():
    """A docstring names the actor: "no reader wants the page" instead of "nobody wants the page"."""
    vague = re.compile(r"\b(anew|whoever|nobody|somebody)\b", re.IGNORECASE)
    assert [place for place, text in docstrings().items() if vague.search(text)] == []
