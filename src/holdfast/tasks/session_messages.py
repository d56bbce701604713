"""Encoding and decoding of session messages by the annotation of the handler's list parameter.

An entry has one message, its payload, or several; a handler gets the messages of all entries in one list.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from inspect import Parameter
from types import SimpleNamespace
from typing import Any, Final, get_args, get_origin, get_type_hints

from holdfast.domain import errors, job, limits, strict_json
from holdfast.tasks import annotation_schema, arguments, json_decode, json_encode

_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_LIST_TYPES: Final = (list, Sequence, Collection, Iterable)


class Messages:
    """Encodes and decodes the messages of one handler. The annotation is evaluated when first needed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        parameters = list(inspect.signature(function).parameters.values())
        positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
        required = [parameter for parameter in parameters[2:] if parameter.default is Parameter.empty]
        if not positional or required:
            raise errors.InvalidInput(
                "function", "must take a SessionContext and the list of messages: def handle(context, messages)"
            )
        self._parameter = positional[1] if len(positional) > 1 else None

    @property
    def takes_messages(self) -> bool:
        """Whether the handler takes messages; the handler of a command need not."""
        return self._parameter is not None

    @cached_property
    def _decoder(self) -> json_decode.Decoder:
        return json_decode.decoder_for(self._message_type())

    def schema(self) -> strict_json.Json:
        """Return the JSON schema of one message; raise `Misconfigured` if the annotation is undefined."""
        writer = annotation_schema.SchemaWriter()
        return writer.document(writer.schema_of(self._message_type()))

    def _message_type(self) -> Any:
        """Return the annotation of one message."""
        if self._parameter is None or self._parameter.annotation is Parameter.empty:
            return Any
        name = SimpleNamespace(__annotations__={"messages": self._parameter.annotation})
        try:
            hint = get_type_hints(name, getattr(inspect.unwrap(self._function), "__globals__", {}))["messages"]
        except NameError as error:
            raise errors.Misconfigured(
                f"{self._function.__qualname__}: its annotation {error.name!r} is undefined at run time; import it, "
                "or define it at the top of the module"
            ) from None
        return _message_type(hint, self._function.__qualname__)

    def encode(self, messages: Sequence[Any]) -> list[strict_json.Json]:
        """Return *messages* as JSON; raise `InvalidInput` naming a message that a worker could not decode."""
        if messages and not self.takes_messages:
            raise errors.InvalidInput("messages", f"are not taken by {self._function.__qualname__}")
        return [self._encode_one(message, index) for index, message in enumerate(messages or [None])]

    def _encode_one(self, message: Any, index: int) -> strict_json.Json:
        try:
            encoded = json_encode.encode(message)
            self._decoder(encoded)
        except json_encode.InvalidValue as error:
            raise errors.InvalidInput(f"messages[{index}]{error.path}", error.problem) from None
        return encoded

    def check(self, message: Any, field: str) -> None:
        """Raise `InvalidInput` with the path under *field* if *message* cannot be decoded."""
        try:
            self._decoder(message)
        except json_encode.InvalidValue:
            # Check the stored form: a tuple, for example, is stored as a list.
            stored = strict_json.decode(strict_json.encode(message, field, limits.PAYLOAD_BYTES_MAX))
            try:
                self._decoder(stored)
            except json_encode.InvalidValue as error:
                raise errors.InvalidInput(f"{field}{error.path}", error.problem) from None

    def decode(self, entry: job.Job) -> list[Any]:
        """Return the decoded messages of *entry*; raise `PayloadInvalid` if one is invalid."""
        messages = []
        for index, message in enumerate(entry.messages):
            try:
                messages.append(self._decoder(message))
            except json_encode.InvalidValue as error:
                raise arguments.PayloadInvalid("messages", f"[{index}]{error.path}", error.problem) from None
        return messages


def _message_type(hint: object, name: str) -> Any:
    """Return the annotation of the elements of a list annotated as *hint*."""
    if hint is Any or hint in _LIST_TYPES:
        return Any
    if get_origin(hint) not in _LIST_TYPES:
        raise errors.Misconfigured(
            f"{name}: its messages must be annotated as a list, such as list[Message], not {hint!r}"
        )
    [message] = get_args(hint)
    return message
