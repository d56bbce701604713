"""`connect` opens a queue and `Worker` takes a queue; other arguments are refused with the correct call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AsyncQueue, InvalidInput, Queue, Tasks, Worker

NOT_QUEUES = ["jobs.db", Path("jobs.db"), None, Tasks()]


@pytest.mark.parametrize("given", NOT_QUEUES, ids=lambda given: type(given).__name__)
def test_a_worker_of_something_else_than_a_queue_is_refused_with_what_to_write(given: Any) -> None:
    with pytest.raises(InvalidInput, match=r'holdfast\.connect\("jobs\.db"\).*Worker\(queue\)') as caught:
        Worker(given)

    assert caught.value.field == "queue"
    assert type(given).__name__ in str(caught.value)


@pytest.mark.parametrize("given", NOT_QUEUES, ids=lambda given: type(given).__name__)
@pytest.mark.parametrize(("queue", "function"), [(Queue, "connect"), (AsyncQueue, "connect_async")])
def test_a_queue_that_was_not_opened_by_connect_is_refused_with_what_to_write(
    queue: type[Any], function: str, given: Any
) -> None:
    with pytest.raises(InvalidInput, match=rf'write holdfast\.{function}\("jobs\.db"\)'):
        queue(given)


def test_a_refused_url_does_not_show_its_password() -> None:
    url: Any = "postgresql://ada:secret@db.example.org/jobs"

    for refused in (lambda: Worker(url), lambda: Queue(url), lambda: holdfast.AsyncQueue(url)):
        with pytest.raises(InvalidInput) as caught:
            refused()
        assert "secret" not in str(caught.value)
