"""A call's arguments as one JSON object by parameter name, and back: what a task's payload is.

Defaults are not filled in when a call is written: a default that changes later changes the jobs that wait as well.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from inspect import Parameter
from types import SimpleNamespace
from typing import Any, Final, get_type_hints

from holdfast.domain import limits, strict_json
from holdfast.domain.errors import InvalidInput, Misconfigured
from holdfast.domain.strict_json import Json
from holdfast.tasks.json_decode import Reader, as_it_is, reader_of
from holdfast.tasks.json_encode import Unfit, write

_BY_NAME: Final = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_IN_PLACE: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_QUOTED: Final = re.compile(r"'(\w+)'")


class PayloadInvalid(Exception):  # noqa: N818  # the name says what to do, as those of the public errors do
    """A stored payload that is no call of the function: the job fails for good with `payload_invalid`."""

    def __init__(self, root: str, path: str, problem: str) -> None:
        super().__init__(f"{root}{path}: {problem}")
        self.path = path
        """The path to the invalid value within the payload."""
        self.problem = problem


class Arguments:
    """How calls of one function are written and read. Annotations are looked at when first needed.

    *without_first* leaves out the first parameter, which is not the caller's to fill.
    """

    def __init__(self, function: Callable[..., Any], *, without_first: bool = False) -> None:
        self.function = function
        parameters = list(inspect.signature(function).parameters.values())[int(without_first) :]
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._signature = inspect.Signature(parameters)
        self._required = frozenset(parameter.name for parameter in parameters if _is_required(parameter))
        self._items = next((p.name for p in parameters if p.kind is Parameter.VAR_POSITIONAL), None)
        self._extras = next((p.name for p in parameters if p.kind is Parameter.VAR_KEYWORD), None)
        self._only_in_place = [p for p in parameters if p.kind is Parameter.POSITIONAL_ONLY]
        self._before_items = [p for p in parameters if p.kind in _IN_PLACE]
        self._named = frozenset(parameter.name for parameter in parameters if parameter.kind in _BY_NAME)

    @cached_property
    def _readers(self) -> dict[str, Reader]:
        annotations = {
            name: parameter.annotation
            for name, parameter in self._parameters.items()
            if parameter.annotation is not Parameter.empty
        }
        try:
            # Only these: what the function returns, and a context, need not be there at run time.
            hints = get_type_hints(SimpleNamespace(__annotations__=annotations), _globals(self.function))
        except NameError as error:
            raise Misconfigured(
                f"{self.function.__qualname__}: its annotation {error.name!r} is not there at run time; import it, "
                "or define it at the top of the module"
            ) from None
        return {name: reader_of(hints[name]) if name in hints else as_it_is for name in self._parameters}

    # --- writing ---------------------------------------------------------------------------------------------------

    def payload(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Json]:
        """Return the call as JSON, or raise `InvalidInput` naming the argument.

        What is written is read once, so that a value no worker could read is refused here and not stored.
        """
        written = self.unread_payload(args, kwargs)
        for name, value in written.items():
            try:
                self._read(name, value)
            except Unfit as error:
                raise InvalidInput(f"arguments.{name}{error.path}", error.problem) from None
        return written

    def unread_payload(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Json]:
        """Return the call as JSON for a caller that calls `check` on it."""
        return {name: self._written(name, value) for name, value in self._bound(args, kwargs).items()}

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        if not args and self._required <= kwargs.keys() <= self._named:
            return kwargs
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            found = _QUOTED.search(str(error))
            place = f"arguments.{found[1]}" if found else "arguments"
            raise InvalidInput(place, str(error)) from None
        extras = bound.pop(self._extras, {}) if self._extras is not None else {}
        if taken := extras.keys() & self._parameters.keys():
            raise InvalidInput(f"arguments.{min(taken)}", "is the name of a parameter and cannot be an extra one")
        return {**bound, **extras}

    @staticmethod
    def _written(name: str, value: Any) -> Json:
        try:
            return write(value)
        except Unfit as error:
            raise InvalidInput(f"arguments.{name}{error.path}", error.problem) from None

    # --- reading ---------------------------------------------------------------------------------------------------

    def check(self, payload: Any) -> None:
        """Raise `InvalidInput` naming the field if the function cannot be called with *payload*."""
        try:
            self.call(payload)
        except PayloadInvalid:
            # A tuple, for example, becomes a list when it is stored: what is stored decides.
            stored = strict_json.decode(strict_json.encode(payload, "payload", limits.PAYLOAD_BYTES_MAX))
            try:
                self.call(stored)
            except PayloadInvalid as error:
                raise InvalidInput(f"payload{error.path}", error.problem) from None

    def call(self, payload: Json) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that *payload* holds, or raise `PayloadInvalid`; null is a call without any."""
        given = {} if payload is None else payload
        if not isinstance(given, dict):
            raise PayloadInvalid("arguments", "", f"must be an object, not a {type(given).__name__}")
        self._refuse_names(given)
        values = {}
        for name, value in given.items():
            try:
                values[name] = self._read(name, value)
            except Unfit as error:
                raise PayloadInvalid("arguments", f".{name}{error.path}", error.problem) from None
        return self._in_place(values), values

    def _refuse_names(self, given: Mapping[str, Json]) -> None:
        if missing := self._required - given.keys():
            raise PayloadInvalid("arguments", f".{min(missing)}", "is missing")
        if self._extras is None and (unknown := given.keys() - self._parameters.keys()):
            problem = f"is not a parameter of {self.function.__qualname__}"
            raise PayloadInvalid("arguments", f".{min(unknown)}", problem)
        if self._extras in given:
            problem = "is the name of all further parameters, not of one"
            raise PayloadInvalid("arguments", f".{self._extras}", problem)

    def _read(self, name: str, written: Json) -> Any:
        readers = self._readers
        if name == self._items:
            return self._read_items(readers[name], written)
        return readers[name if name in readers else self._extras or name](written)

    @staticmethod
    def _read_items(reader: Reader, written: Json) -> list[Any]:
        if not isinstance(written, list):
            raise Unfit("must be a list")
        values = []
        for index, item in enumerate(written):
            try:
                values.append(reader(item))
            except Unfit as error:
                raise error.inside(f"[{index}]") from None
        return values

    def _in_place(self, values: dict[str, Any]) -> tuple[Any, ...]:
        """Take out of *values* those that have to be given by place, and return them."""
        if self._items is None and not self._only_in_place:
            return ()
        items = values.pop(self._items, ()) if self._items is not None else ()
        leading = self._before_items if items else self._only_in_place
        # A default stands for one that was left out before others that were not.
        return (*(values.pop(parameter.name, parameter.default) for parameter in leading), *items)


def _is_required(parameter: Parameter) -> bool:
    variable = parameter.kind in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    return parameter.default is Parameter.empty and not variable


def _globals(function: Callable[..., Any]) -> dict[str, Any]:
    names: dict[str, Any] = getattr(inspect.unwrap(function), "__globals__", {})
    return names
