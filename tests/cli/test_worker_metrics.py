"""`holdfast worker --metrics-port`: the metrics for Prometheus."""

from __future__ import annotations

import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import holdfast
from holdfast.cli.worker_processes import child_options
from tests.cli.worker_process import running, write_app
from tests.support.command_line import PATIENCE_SECONDS

pytestmark = pytest.mark.slow("each test starts a worker as a process")


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[holdfast.Queue]:
    write_app(tmp_path)
    with holdfast.connect(str(tmp_path / "jobs.db")) as queue:
        yield queue


def free_ports(count: int) -> int:
    """Return the first of *count* consecutive free ports."""
    for _ in range(100):
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
        try:
            for number in range(count):
                with socket.socket() as other:
                    other.bind(("127.0.0.1", port + number))
        except OSError:
            continue
        return port
    raise AssertionError("no ports are free")


def slots_at(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_SECONDS) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        [found] = [one.value for family in families for one in family.samples if one.name == "holdfast_worker_slots"]
    return float(found)


def test_metrics_are_served_while_the_worker_runs(tmp_path: Path, queue: holdfast.Queue) -> None:
    port = free_ports(1)
    enqueued = queue.enqueue("add", {"one": 2, "other": 3})
    with running(tmp_path, "--json", "--concurrency", "3", "--metrics-port", str(port)) as worker:
        queue.wait(enqueued.id, timeout=PATIENCE_SECONDS)
        slots = slots_at(port)
        worker.process.send_signal(signal.SIGTERM)
        code = worker.finish()

    assert (slots, code) == (3, 0)


def test_each_of_several_processes_has_its_own_port(tmp_path: Path, queue: holdfast.Queue) -> None:
    port = free_ports(2)
    arguments = ("--processes", "2", "--concurrency", "1", "--metrics-port", str(port))
    with running(tmp_path, *arguments) as worker:
        held = [queue.enqueue("hold", {}), queue.enqueue("hold", {})]
        for _ in held:
            worker.document(handler="hold")
        slots = [slots_at(port), slots_at(port + 1)]
        (tmp_path / "go").touch()
        for one in held:
            queue.wait(one.id, timeout=PATIENCE_SECONDS)
        worker.process.send_signal(signal.SIGTERM)
        worker.finish()

    assert slots == [1, 1]


@pytest.mark.parametrize(("given", "ports"), [(None, [None, None]), (0, [0, 0]), (9464, [9464, 9465])])
def test_ports_of_children_are_consecutive_from_the_given_one(given: int | None, ports: list[int | None]) -> None:
    assert [child_options(number, "w", {"metrics_port": given})["metrics_port"] for number in (1, 2)] == ports


def test_a_port_in_use_ends_the_worker_with_an_error(tmp_path: Path, queue: holdfast.Queue) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with running(tmp_path, "--metrics-port", str(port)) as worker:
            output = worker.prints("cannot be served")
            code = worker.finish()

    assert f"127.0.0.1:{port}" in output
    assert code != 0
