"""The messages of a session's entries as their handler has them: written and read by its annotation of one.

An entry is one message, its payload, or several, its items; a handler is given those of all entries in one list.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from inspect import Parameter
from types import SimpleNamespace
from typing import Any, Final, get_args, get_origin, get_type_hints

from holdfast.domain import limits, strict_json
from holdfast.domain.errors import InvalidInput, Misconfigured
from holdfast.domain.job import Job
from holdfast.domain.strict_json import Json
from holdfast.tasks.arguments import PayloadInvalid
from holdfast.tasks.json_decode import Reader, as_it_is, reader_of
from holdfast.tasks.json_encode import Unfit, write

_IN_PLACE: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_LISTS: Final = (list, Sequence, Collection, Iterable)


class Messages:
    """How the messages of one handler are written and read. The annotation is looked at when first needed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        parameters = list(inspect.signature(function).parameters.values())
        taken = [parameter for parameter in parameters if parameter.kind in _IN_PLACE]
        needed = [parameter for parameter in parameters[2:] if parameter.default is Parameter.empty]
        if not taken or needed:
            raise InvalidInput(
                "function", "must take a SessionContext and the list of messages: def answer(context, messages)"
            )
        self._parameter = taken[1] if len(taken) > 1 else None

    @property
    def given(self) -> bool:
        """Whether the handler takes messages; that of a command may do without."""
        return self._parameter is not None

    @cached_property
    def _reader(self) -> Reader:
        if self._parameter is None or self._parameter.annotation is Parameter.empty:
            return as_it_is
        named = SimpleNamespace(__annotations__={"messages": self._parameter.annotation})
        try:
            hint = get_type_hints(named, getattr(inspect.unwrap(self._function), "__globals__", {}))["messages"]
        except NameError as error:
            raise Misconfigured(
                f"{self._function.__qualname__}: its annotation {error.name!r} is not there at run time; import it, "
                "or define it at the top of the module"
            ) from None
        return _reader_in(hint, self._function.__qualname__)

    def write(self, messages: Sequence[Any]) -> list[Json]:
        """Return *messages* as JSON, or raise `InvalidInput` naming the one that no worker could read."""
        if messages and not self.given:
            raise InvalidInput("messages", f"are not taken by {self._function.__qualname__}")
        return [self._written(message, index) for index, message in enumerate(messages or [None])]

    def _written(self, message: Any, index: int) -> Json:
        try:
            written = write(message)
            self._reader(written)
        except Unfit as error:
            raise InvalidInput(f"messages[{index}]{error.path}", error.problem) from None
        return written

    def check(self, message: Any, field: str) -> None:
        """Raise `InvalidInput` naming *field*, or a place in it, if the handler cannot read *message*."""
        try:
            self._reader(message)
        except Unfit:
            # A tuple, for example, becomes a list when it is stored: what is stored decides.
            stored = strict_json.decode(strict_json.encode(message, field, limits.PAYLOAD_BYTES_MAX))
            try:
                self._reader(stored)
            except Unfit as error:
                raise InvalidInput(f"{field}{error.path}", error.problem) from None

    def read(self, entry: Job) -> list[Any]:
        """Return the messages of *entry*, or raise `PayloadInvalid`."""
        messages = []
        for index, item in enumerate(entry.items):
            try:
                messages.append(self._reader(item))
            except Unfit as error:
                raise PayloadInvalid("messages", f"[{index}]{error.path}", error.problem) from None
        return messages


def _reader_in(hint: object, named: str) -> Reader:
    """Return the reader of what a list annotated as *hint* holds."""
    if hint is Any or hint in _LISTS:
        return as_it_is
    if get_origin(hint) not in _LISTS:
        raise Misconfigured(f"{named}: its messages must be annotated as a list, such as list[Message], not {hint!r}")
    [item] = get_args(hint)
    return reader_of(item)
