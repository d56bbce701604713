"""A gateway in a process of its own that kills itself before a statement.

Arguments: the file or URL of the store, its schema, the URL of the model server, and the statement, empty for none.
The statement `attempt` stands for the begin of an attempt, `ended` for the report that one is settled.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable

from holdfast.client import connect
from holdfast.gateway import attempts, server as gateway_server
from holdfast.gateway.gateway import Gateway
from holdfast.gateway.settings import GatewaySettings
from holdfast.service import server
from holdfast.service.settings import ServiceSettings
from holdfast.storage.postgres import store as postgres_store
from holdfast.storage.sqlite.store import SqliteStore
from tests.support.webhook_process import Killer


def main(url: str, schema: str, upstream: str, stage: str) -> None:
    """Serve until this process is killed."""
    killer, postgres = Killer(stage), postgres_store.PostgresStore
    vars(connect)["SqliteStore"] = functools.partial(SqliteStore, observe=killer)
    vars(postgres_store)["PostgresStore"] = functools.partial(postgres, observe=killer)
    run, ended = attempts.Attempts.run, attempts.Settlements.ended

    def after_stage(stage: str, call: Callable[..., object]) -> Callable[..., object]:
        def reach_and_call(*given: object) -> object:
            killer(stage)
            return call(*given)

        return reach_and_call

    vars(attempts)["Attempts"].run = after_stage("attempt", run)
    vars(attempts)["Settlements"].ended = after_stage("ended", ended)
    listener = server.listen("127.0.0.1", 0)

    def started(_stop: Callable[[], object], _gateway: Gateway) -> None:
        print(listener.getsockname()[1], flush=True)

    settings = GatewaySettings(upstream=upstream, upstream_type="ollama")
    service = ServiceSettings(tokens=False)
    asyncio.run(gateway_server.serve(url, listener, settings, schema=schema, service=service, started=started))


if __name__ == "__main__":
    main(*sys.argv[1:])
