"""Every Python block and every `holdfast` command in README and docs runs and prints the output on the page.

The blocks of one page run in order, in one namespace and one empty folder. In Python blocks a comment `#> text` shows
one line of output. In console blocks the lines after a command show its output; `...` matches any text.
"""

from __future__ import annotations

import contextlib
import doctest
import functools
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

import holdfast
from tests.project.sources import DOCS, PACKAGE, PAGES, ROOT, assert_none
from tests.support.command_line import environment, run
from tests.support.postgres_schemas import migrated_schema
from tests.support.postgres_server import database_url

FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^\s*#> ?(.*)$", re.MULTILINE)
COMMAND = re.compile(r"^\$ (?P<command>.+)\n(?P<shown>(?:(?!\$ ).*\n)*)", re.MULTILINE)


class Block(NamedTuple):
    """One fenced block and the line on which its text begins."""

    language: str
    text: str
    line: int


def _blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["text"], text.count("\n", 0, found.start("text")) + 1)
        for found in FENCE.finditer(text)
    ]


def _runs(page: Path) -> bool:
    return any(block.language in {"python", "console"} for block in _blocks(page))


@pytest.mark.slow("the examples run programs")
@pytest.mark.parametrize("page", [page for page in PAGES if _runs(page)], ids=lambda page: page.name)
def test_the_examples_of_a_page_run_and_print_the_shown_output(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    with _queues_closed({"__name__": "__main__"}) as namespace:
        for block in _blocks(page):
            match block.language:
                case "python":
                    _run_python(page, block, namespace)
                case "console":
                    _run_commands(page, block)
                case _:
                    pass


@pytest.mark.slow("the example runs a worker")
def test_the_api_in_one_screen_is_the_same_on_postgresql() -> None:
    page = DOCS / "api-in-one-screen.md"
    [block] = [block for block in _blocks(page) if block.language == "python"]
    connected = block._replace(text=block.text.replace('("jobs.db")', "(**options)"))
    with migrated_schema() as schema:
        options = {"schema": schema, "url": f"{database_url()}?options={quote(f'-csearch_path={schema}')}"}
        with _queues_closed({"__name__": "__main__", "options": options}) as namespace:
            _run_python(page, connected, namespace)


@contextlib.contextmanager
def _queues_closed(namespace: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        yield namespace
    finally:
        for value in namespace.values():
            if isinstance(value, holdfast.Queue):
                value.close()


def _run_python(page: Path, block: Block, namespace: dict[str, Any]) -> None:
    # With leading blank lines a traceback names the line of the page.
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    assert printed.getvalue().splitlines() == SHOWN.findall(block.text), f"{page.name}, line {block.line}"


def _run_commands(page: Path, block: Block) -> None:
    for found in COMMAND.finditer(block.text):
        arguments = shlex.split(found["command"])
        assert arguments[0] == "holdfast", f"{page.name}, line {block.line}: only holdfast is run here"
        ran = run(*arguments[1:], cwd=Path.cwd(), env=environment(COLUMNS="118"))
        assert (ran.returncode, ran.stderr) == (0, ""), found["command"]
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert doctest.OutputChecker().check_output(found["shown"], ran.stdout, flags), ran.stdout


def test_a_block_names_its_language_or_is_a_drawing() -> None:
    for page in PAGES:
        for block in _blocks(page):
            # Blocks in `py` are checked by mypy in tests/type_checks.
            type_checked = block.language == "py" and page.name == "typing.md"
            assert type_checked or block.language in {"python", "console", "text", ""}
            if not block.language:
                assert "import holdfast" not in block.text, f"{page.name}, line {block.line} is not run"


def test_links_of_a_page_lead_to_existing_files_and_headings() -> None:
    broken = []
    for page in [*PAGES, *DOCS.rglob("*.md")]:
        for file, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
            target = page.parent / file if file else page
            if "://" in file or (target.exists() and (not anchor or anchor in _anchors(target))):
                continue
            broken.append(f"{page.relative_to(ROOT)} links to {file}#{anchor}")

    assert_none(broken)


@functools.cache
def _anchors(page: Path) -> set[str]:
    """Return the fragments to which a link into a page may lead: its headings, and its explicit anchors."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


def test_contributing_and_decisions_name_only_files_that_exist() -> None:
    layers = "|".join(path.name for path in PACKAGE.iterdir() if path.is_dir())
    named = re.compile(rf"\b(?:{layers}|stores|runtime)/[\w/]*(?:\w/|\.py|\.sql)(?=[^\w*<]|$)", re.MULTILINE)
    pages = [ROOT / "CONTRIBUTING.md", *(DOCS / "decisions").glob("*.md")]
    paths = {(page.name, path) for page in pages for path in named.findall(page.read_text(encoding="utf-8"))}

    assert len(paths) > 30
    assert_none(sorted((page, path) for page, path in paths if not (PACKAGE / path).exists()))


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_no_page_installs_the_package_from_an_index_that_does_not_have_it() -> None:
    for page in PAGES:
        for line in re.findall(r"pip install [^`\n]*", page.read_text(encoding="utf-8")):
            assert not re.search(r"[\s'\"]holdfast\b", line), f"{page.name}: {line}"
