"""Ids and waits come from the library's own generator, which a program can neither seed nor break."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

import holdfast
from holdfast import Failed
from holdfast.storage.randomness import RANDOM, lease_token

SOURCE = Path(holdfast.__file__).parent


def test_a_program_that_seeds_the_random_module_gets_different_ids(tmp_path: Path) -> None:
    with holdfast.connect(tmp_path / "jobs.db") as queue:
        made = []
        for _ in range(3):
            random.seed(42)
            made.append(queue.enqueue("mail", {}).id)
    # The first 48 bits of an id are the time; the rest is random.
    assert len({job_id[14:] for job_id in made}) == 3


def test_a_replaced_random_module_breaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> float:
        raise AssertionError("the module's own generator was used")

    for name in ("random", "uniform", "getrandbits", "randint", "choice"):
        monkeypatch.setattr(random, name, refuse)
    with holdfast.connect(tmp_path / "jobs.db") as queue:
        queue.enqueue("mail", {})
        claim = queue.claim(worker="w1")
        assert claim is not None
        assert queue.settle(claim, Failed("later")).state == "scheduled"


def test_a_forked_child_draws_other_numbers_than_its_parent() -> None:
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, RANDOM.getrandbits(64).to_bytes(8, "big"))
        os._exit(0)
    os.waitpid(child, 0)
    assert int.from_bytes(os.read(reading, 8), "big") != RANDOM.getrandbits(64)
    os.close(reading)
    os.close(writing)


def test_no_other_module_draws_from_the_random_module() -> None:
    drawing = re.compile(r"^\s*(import random\b|from random import)", re.MULTILINE)
    found = {path.name for path in SOURCE.rglob("*.py") if drawing.search(path.read_text())}
    assert found == {"randomness.py"}


def test_lease_tokens_are_unique_also_in_a_forked_child() -> None:
    first = [lease_token() for _ in range(3)]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, "".join(lease_token() for _ in range(70)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    text = os.read(reading, 1 << 16).decode()
    os.close(reading)
    os.close(writing)
    tokens = [*first, *(lease_token() for _ in range(70)), *re.findall(".{32}", text)]
    assert len(tokens) == len(set(tokens)) == 143
    assert all(re.fullmatch("[0-9a-f]{32}", token) for token in tokens)
