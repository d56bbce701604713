"""A server that cannot be reached, or refuses: the error says what to check, on one line, without the password."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

import holdfast
from holdfast import HoldfastError, InvalidInput
from holdfast.errors import Misconfigured, StoreUnreachable
from tests.chaos.processes import PATIENCE_SECONDS
from tests.support.postgres_server import database_url, free_port

PASSWORD = "s3cret"


def enqueued(url: str) -> HoldfastError:
    """Return the error of an enqueue, the same from both APIs."""

    async def enqueue() -> None:
        async with holdfast.connect_async(url) as queue:
            await queue.enqueue("mail")

    with pytest.raises(HoldfastError) as caught, holdfast.connect(url) as queue:
        queue.enqueue("mail")
    with pytest.raises(type(caught.value)) as caught_async:
        asyncio.run(enqueue())
    assert str(caught.value) == str(caught_async.value)
    return caught.value


def refusal(message: bytes) -> bytes:
    """Return what a server sends that refuses a connection."""
    fields = b"SFATAL\0C28P01\0M" + message + b"\0\0"
    return b"E" + struct.pack("!i", len(fields) + 4) + fields


FRENCH = refusal("accès refusé à l'utilisateur".encode("latin-1"))
WRONG_PASSWORD = refusal(b'password authentication failed for user "ada"')
ASKS_FOR_A_PASSWORD = b"R" + struct.pack("!ii", 8, 3)


@pytest.fixture
def refusing(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a server that gives all connections the same answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    client.recv(1 << 16)
                    client.sendall(request.param)

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
    serving.join(PATIENCE_SECONDS)


def test_a_server_that_does_not_run() -> None:
    error = enqueued(f"postgresql://ada:{PASSWORD}@127.0.0.1:{free_port()}/jobs")
    assert isinstance(error, StoreUnreachable)
    assert "check that it is running, and the host and port" in str(error)
    assert PASSWORD not in str(error)
    assert str(error).isprintable(), "one line, without tabs"


@pytest.mark.parametrize("refusing", [FRENCH], indirect=True, ids=[""])
def test_a_refusal_in_an_unknown_encoding(refusing: int) -> None:
    error = enqueued(f"postgresql://ada:{PASSWORD}@127.0.0.1:{refusing}/jobs?sslmode=disable&gssencmode=disable")
    assert "acc?s refus? ? l'utilisateur" in str(error)
    assert "\ufffd" not in str(error)
    assert PASSWORD not in str(error)


@pytest.mark.parametrize(
    ("refusing", "user"),
    [(WRONG_PASSWORD, f"ada:{PASSWORD}"), (ASKS_FOR_A_PASSWORD, "ada")],
    indirect=["refusing"],
    ids=["wrong", "missing"],
)
def test_a_password_that_is_wrong_or_missing(refusing: int, user: str) -> None:
    error = enqueued(f"postgresql://{user}@127.0.0.1:{refusing}/jobs?sslmode=disable&gssencmode=disable")
    assert isinstance(error, Misconfigured)
    assert str(error).startswith("the server refuses the user or the password; check them in the URL or PGPASSWORD")
    assert PASSWORD not in str(error)


def test_a_role_or_a_database_that_does_not_exist() -> None:
    server = urlsplit(database_url())
    place = server.netloc.rpartition("@")[2]

    role = enqueued(server._replace(netloc=f"nobody:{PASSWORD}@{place}").geturl())
    database = enqueued(server._replace(path="/nowhere").geturl())

    assert str(role).startswith("the server refuses this role; check the URL and the server's pg_hba.conf")
    assert str(database).startswith("the server has no such database; create it, or check the URL")


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "postgres+asyncpg"])
def test_a_url_that_names_a_driver(scheme: str) -> None:
    with pytest.raises(InvalidInput, match="write postgresql://") as caught:
        holdfast.connect(f"{scheme}://ada:{PASSWORD}@db/jobs")
    assert PASSWORD not in str(caught.value)


def test_a_server_that_never_answers_keeps_no_event_loop_from_ending() -> None:
    async def give_up(port: int) -> None:
        queue = holdfast.connect_async(f"postgresql://127.0.0.1:{port}/jobs?connect_timeout=600")
        call = asyncio.ensure_future(queue.enqueue("mail"))
        async with asyncio.timeout(30):
            while not opening():  # noqa: ASYNC110  # a thread starts it
                await asyncio.sleep(0.001)
        call.cancel()

    def opening() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "holdfast-call"]

    # The kernel accepts connections, and nothing is ever sent back.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(give_up(listener.getsockname()[1]))
        left = opening()
        assert [thread.daemon for thread in left] == [True]
    for thread in left:
        thread.join(PATIENCE_SECONDS)
