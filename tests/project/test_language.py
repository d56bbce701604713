"""Holdfast's text is plain technical English: a short list of words that do not occur in code and documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.sources import ROOT, assert_none

# The word, and a term to use instead. A word matches in text and as a part of an identifier.
WORDS = {
    r"words": "options or arguments",
    r"colours?": "sync and async, or a style of the terminal",
    r"faces?": "API",
    r"whoever": "the actor: caller, worker, store, transaction",
    r"(some|any|every)body|nobody": "the actor: caller, worker, store, transaction",
    r"shall": "must, or the present tense",
    r"anew": "again",
    r"for ever": "indefinitely",
    r"meanwhile": "while, or in the meantime",
    r"heed(s|ed|ing)?": "handle",
    r"bites?": "chunk",
    r"brings? [^.;:]{1,60} to (its|their|an) end": "finishes, expires or settles",
    r"(un)?tid(y|ies|ied|ying)": "maintain, or due work",
    r"in hand|in (its|their|his|other|another's|good|no) hands?": "held by a claim, or held by a worker",
    r"(fell|falls?|fallen) silent": "stops renewing its lease",
    r"laps(e|es|ed|ing)": "expire",
    r"twins?": "clone",
}
# Names of other libraries that contain a word of the list.
FOREIGN_NAMES = ("break_long_words",)


def compiled(word: str) -> re.Pattern[str]:
    """Return a pattern for *word* as a whole word or a part of an identifier, across line breaks."""
    return re.compile("(?<![a-z])(" + word.replace(" ", r"\s+") + ")(?![a-z])", re.IGNORECASE)


PATTERNS = {compiled(word): instead for word, instead in WORDS.items()}
CAMEL_CASE = re.compile("(?<=[a-z])(?=[A-Z])")


def texts() -> Iterator[Path]:
    """Yield the files with text for users and maintainers."""
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))
    yield from sorted(path for path in (ROOT / "docs").rglob("*") if path.suffix in {".md", ".json"})
    yield from sorted(path for path in (ROOT / "src").rglob("*") if path.suffix in {".py", ".sql"})


def findings(text: str) -> Iterator[str]:
    """Yield each forbidden word of *text* with its line."""
    for name in FOREIGN_NAMES:
        text = text.replace(name, "")
    text = CAMEL_CASE.sub("_", text)
    for pattern, instead in PATTERNS.items():
        for found in pattern.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield f"line {line}: {' '.join(found[0].split())!r}; write {instead}"


@pytest.mark.slow("it reads all texts")
def test_text_and_names_use_plain_technical_terms() -> None:
    assert_none(
        f"{path.relative_to(ROOT)}, {finding}"
        for path in texts()
        for finding in findings(path.read_text(encoding="utf-8"))
    )


@pytest.mark.parametrize(
    "text",
    [
        "def claim(**words): ...",
        "the worker fell silent",
        "Whoever waits brings the job to its end.",
        "for\never",
        "class TwinStore: ...",
        "self._bite()",
    ],
)
def test_a_forbidden_word_is_found_in_text_and_in_names(text: str) -> None:
    assert list(findings(text))


@pytest.mark.parametrize(
    "text", ["keywords", "the elapsed time", "the interface", "textwrap.fill(break_long_words=False)"]
)
def test_a_word_that_only_contains_a_forbidden_one_is_allowed(text: str) -> None:
    assert not list(findings(text))
