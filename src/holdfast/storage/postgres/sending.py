"""How a transaction on the server sends statements: those without an answer wait for the next one.

Each wait for an answer is a round trip. The first statements are sent with the begin, a write whose rows the caller
does not need is sent with the next statement or the commit, and independent reads are sent together.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.domain.clock import Clock, Now
from holdfast.storage.postgres import binding, commits, sql
from holdfast.storage.postgres.commits import PostgresSettings
from holdfast.storage.postgres.io import ServerIO, Statement
from holdfast.storage.query_names import QueryName
from holdfast.storage.sql_queries import Row, Rows, check_changed
from holdfast.storage.sql_transaction import RoutingCache, SqlTransaction

_NO_VALUES: Mapping[str, Any] = {}
# The one query whose values are bytes: the last of three.
_BYTES: Final = "upload_chunk_insert"
_BYTES_LAST: Final = (0, 0, 1)
_UNSENT_BYTES_MAX: Final = 1 << 20


class _Clock:
    """The server's clock at the begin, advanced by this machine's monotonic clock."""

    def __init__(self, at_ms: int) -> None:
        self._at_ms = at_ms
        self._read_at = time.monotonic()

    def now(self) -> Now:
        now_ms = self._at_ms + int((time.monotonic() - self._read_at) * 1000)
        return Now(now_ms, now_ms)


class _Unsent(NamedTuple):
    """A statement that is sent with the next one."""

    name: QueryName
    statement: Statement
    expected: int | None = None
    """How many rows it must change, if it matters."""


class SendingTransaction(SqlTransaction):
    """A transaction on the server that begins with its first statement, or has *begun* on the caller's connection."""

    __slots__ = (
        "_ahead",
        "_clock",
        "_expected_reads",
        "_io",
        "_joined",
        "_settings",
        "_texts",
        "_unsent",
        "begun",
        "writes",
    )

    def __init__(
        self,
        cache: RoutingCache,
        settings: PostgresSettings,
        io: ServerIO,
        *,
        writes: bool,
        begun: Rows | None,
    ) -> None:
        super().__init__(cache)
        self._settings = settings
        self._io = io
        self._texts = settings.texts.writing if writes else settings.texts.reading
        self._clock: Clock | None = settings.clock
        self.writes = writes
        self._joined = begun is not None
        self._unsent: list[_Unsent] = []
        """Statements that are sent with the next one."""
        self._expected_reads: list[tuple[_Unsent, bool]] = []
        """Reads that are sent after the next statement, and whether their rows are kept."""
        self._ahead: dict[tuple[bytes, tuple[bytes | None, ...]], tuple[Rows, bool]] = {}
        """The rows of such reads, by statement."""
        self.begun = False
        """Whether a transaction is open."""
        if begun is not None:
            self._begin_at(begun)

    def _begin_at(self, begun: Rows) -> None:
        self.begun = True
        self._clock = self._clock or _Clock(begun[-1][-1])

    async def commit(self) -> None:
        """Send what is not sent and commit, if there is anything to commit."""
        if any(one.expected is not None for one in self._unsent) or (self._unsent and not self.begun):
            # The number of changed rows decides whether to commit.
            await self._run(())
        if self.begun and self.writes:
            unsent, self._unsent = self._unsent, []
            await commits.commit(self._settings, self._io, self.topics, [one.statement for one in unsent])
        elif self.begun:
            await self._io.message("commit")

    @property
    def knows_time(self) -> bool:
        """Whether the server's clock was read."""
        return self._clock is not None

    async def now(self) -> Now:
        """Return the server's clock."""
        if self._clock is None:
            self._observe_begin()
            await self._run(())
        return self._clock.now()  # type: ignore[union-attr]  # beginning sets it

    async def query(
        self, name: QueryName, values: Mapping[str, Any] = _NO_VALUES, many: Sequence[Row] | None = None
    ) -> Rows:
        """Run one named statement, after those that are not sent yet, in one round trip."""
        if self._joined:
            return await self._query_joined(name, values, many)
        last = self._statements(name, values, many)
        if self._ahead and (found := self._read_before(last[0])) is not None:
            return found
        self._observe_begin()
        self._settings.observe(name)
        replies = await self._run([_Unsent(name, one) for one in last])
        return [(len(last),)] if many is not None and name == _BYTES else replies[-1]

    async def query_each(self, queries: Sequence[tuple[QueryName, Mapping[str, Any]]]) -> list[Rows]:
        """Run named statements in one round trip."""
        if self._joined:
            return await super().query_each(queries)
        self._observe_begin()
        sent = []
        for name, values in queries:
            self._settings.observe(name)
            sent += [_Unsent(name, one) for one in self._statements(name, values, None)]
        return (await self._run(sent))[-len(sent) :]

    async def read_ahead(
        self, name: QueryName, make_values: Callable[[], Mapping[str, Any]], *, kept: bool = False
    ) -> None:
        """Send a read after the next statement, in the same round trip."""
        if not self._joined:
            self._expected_reads += [
                (_Unsent(name, one), kept) for one in self._statements(name, make_values(), None)
            ]

    def _read_before(self, statement: Statement) -> Rows | None:
        """Return the rows of a statement that was read ahead; forget the others that are not kept."""
        found = self._ahead.pop((statement.text, tuple(statement.values)), None)
        self._forget_ahead()
        return None if found is None else found[0]

    def _forget_ahead(self) -> None:
        if self._ahead:
            self._ahead = {key: one for key, one in self._ahead.items() if one[1]}

    async def send(
        self,
        name: QueryName,
        values: Mapping[str, Any] = _NO_VALUES,
        many: Sequence[Row] | None = None,
        expected: int | None = None,
    ) -> None:
        """Send one named statement with the next one, or with the commit."""
        if self._joined:
            await super().send(name, values, many, expected)
            return
        self._observe_begin()
        self._settings.observe(name)
        # It may change what was read ahead.
        self._forget_ahead()
        statements = self._statements(name, values, many)
        each = None if expected is None else expected // len(statements)
        self._unsent += [_Unsent(name, one, each) for one in statements]
        if name == _BYTES:
            chunks = (one.statement.values[-1] for one in self._unsent if one.name == _BYTES)
            if sum(len(chunk or b"") for chunk in chunks) > _UNSENT_BYTES_MAX:
                await self._run(())

    def _observe_begin(self) -> None:
        if not self.begun and not self._unsent:
            self._settings.observe("begin")

    async def _run(self, statements: Sequence[_Unsent]) -> list[Rows]:
        """Run what is not sent and *statements* in one round trip, and begin if needed; return the rows of all."""
        settings = self._settings
        reads, self._expected_reads = self._expected_reads, []
        for one, _ in reads:
            settings.observe(one.name)
        sent, self._unsent = [*self._unsent, *statements, *(one for one, _ in reads)], []
        texts = [one.statement for one in sent]
        if self.begun:
            replies = await self._io.run(texts, prepare=settings.prepares is None)
        else:
            beginning = settings.begin_writing if self.writes else settings.begin_reading
            replies = await commits.begin_with(settings, self._io, beginning, texts)
            self._begin_at(replies[len(beginning) - 1])
            replies = replies[len(beginning) :]
        for one, rows in zip(sent, replies, strict=True):
            if one.expected is not None:
                check_changed(one.name, rows, one.expected)
        self._forget_ahead()
        for (one, kept), rows in zip(reads, replies[len(replies) - len(reads) :], strict=True):
            self._ahead[one.statement.text, tuple(one.statement.values)] = (rows, kept)
        return replies[: len(replies) - len(reads)]

    def _statements(self, name: QueryName, values: Mapping[str, Any], many: Sequence[Row] | None) -> list[Statement]:
        text, names = sql.numbered(self._texts[name])
        if many is None:
            given = binding.bound(values)
            return [Statement(text, [binding.encoded(given[one]) for one in names])]
        if name == _BYTES:
            # Bytes are sent one chunk at a time, to keep each message within the server's limit.
            return [
                Statement(text, [binding.encoded(row[int(one[1:])]) for one in names], _BYTES_LAST) for row in many
            ]
        given = binding.columns(many, "c")
        return [Statement(text, [binding.encoded(given[one]) for one in names])]

    async def _query_joined(self, name: QueryName, values: Mapping[str, Any], many: Sequence[Row] | None) -> Rows:
        """Run one statement in the transaction of the caller, whose connection may be in any mode."""
        self._settings.observe(name)
        text, prepare = self._texts[name], self._settings.prepares
        if many is None:
            return await self._io.query(text, binding.bound(values), prepare=prepare)
        if name == _BYTES:
            for row in many:
                values = binding.bound({f"c{index}": value for index, value in enumerate(row)})
                await self._io.query(text, values, prepare=prepare)
            return [(len(many),)]
        return await self._io.query(text, binding.columns(many, "c"), prepare=prepare)
