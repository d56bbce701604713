"""Encoding of a call's arguments as a task's payload, a JSON object by parameter name, and decoding.

Defaults are not stored in the payload: a later change of a default also applies to jobs that wait.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from inspect import Parameter
from types import SimpleNamespace
from typing import Any, Final, get_type_hints

from holdfast.domain import errors, limits, strict_json
from holdfast.tasks import annotation_schema, json_decode, json_encode

_KEYWORD: Final = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_QUOTED: Final = re.compile(r"'(\w+)'")


class PayloadInvalid(Exception):  # noqa: N818  # named like the public errors
    """A stored payload does not match the function's parameters: the job fails with `payload_invalid`."""

    def __init__(self, root: str, path: str, problem: str) -> None:
        super().__init__(f"{root}{path}: {problem}")
        self.path = path
        """The path to the invalid value within the payload."""
        self.problem = problem


class Arguments:
    """Encodes and decodes the calls of one function. Annotations are evaluated when first needed.

    *without_first* omits the first parameter, the context, which the worker passes.
    """

    def __init__(self, function: Callable[..., Any], *, without_first: bool = False) -> None:
        self.function = function
        parameters = list(inspect.signature(function).parameters.values())[int(without_first) :]
        self._parameters = {parameter.name: parameter for parameter in parameters}
        self._signature = inspect.Signature(parameters)
        self._required = frozenset(parameter.name for parameter in parameters if _is_required(parameter))
        self._items = next((p.name for p in parameters if p.kind is Parameter.VAR_POSITIONAL), None)
        self._extras = next((p.name for p in parameters if p.kind is Parameter.VAR_KEYWORD), None)
        self._positional_only = [p for p in parameters if p.kind is Parameter.POSITIONAL_ONLY]
        self._before_items = [p for p in parameters if p.kind in _POSITIONAL]
        self._named = frozenset(parameter.name for parameter in parameters if parameter.kind in _KEYWORD)

    @cached_property
    def _decoders(self) -> dict[str, json_decode.Decoder]:
        hints = self._hints()
        decoders = {
            name: json_decode.decoder_for(hints[name]) if name in hints else json_decode.passthrough
            for name in self._parameters
        }
        if self._items is not None:
            decoders[self._items] = partial(_decode_items, decoders[self._items])
        return decoders

    @cached_property
    def _decoder_of_others(self) -> json_decode.Decoder:
        """Decodes an argument that is not a parameter."""
        return json_decode.passthrough if self._extras is None else self._decoders[self._extras]

    @cached_property
    def _decodes(self) -> bool:
        """Whether an argument may differ from its JSON."""
        decoders = (*self._decoders.values(), self._decoder_of_others)
        return any(decoder is not json_decode.passthrough for decoder in decoders)

    def _hints(self) -> dict[str, Any]:
        # Evaluate only these: the return type and the context type may not be defined at run time.
        parameters = self._parameters.items()
        return evaluate_annotations(self.function, {name: parameter.annotation for name, parameter in parameters})

    def schema(self) -> strict_json.Json:
        """Return the JSON schema of a payload; raise `Misconfigured` if an annotation is undefined."""
        writer, hints = annotation_schema.SchemaWriter(), self._hints()
        schemas = {name: writer.schema_of(hints.get(name, Any)) for name in self._parameters}
        others: strict_json.Json = False
        if self._items is not None:
            schemas[self._items] = annotation_schema.list_schema(schemas[self._items])
        if self._extras is not None:
            others, schemas[self._extras] = schemas[self._extras], False
        given = {name: parameter.default for name, parameter in self._parameters.items()}
        defaults = {name: default for name, default in given.items() if default is not Parameter.empty}
        return writer.document(annotation_schema.object_schema(schemas, self._required, defaults, others))

    # --- encoding --------------------------------------------------------------------------------------------------

    def payload(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, strict_json.Json]:
        """Return the call as JSON; raise `InvalidInput` naming an invalid argument.

        The result is decoded once, so that a value that a worker could not decode is refused before it is stored.
        """
        encoded = self.unchecked_payload(args, kwargs)
        for name, value in encoded.items():
            try:
                self._decoders.get(name, self._decoder_of_others)(value)
            except json_encode.InvalidValue as error:
                raise errors.InvalidInput(f"arguments.{name}{error.path}", error.problem) from None
        return encoded

    def unchecked_payload(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, strict_json.Json]:
        """Return the call as JSON without decoding it; the caller calls `check`."""
        return {name: self._encode(name, value) for name, value in self._bind(args, kwargs).items()}

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        if not args and self._required <= kwargs.keys() <= self._named:
            return kwargs
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            found = _QUOTED.search(str(error))
            field = f"arguments.{found[1]}" if found else "arguments"
            raise errors.InvalidInput(field, str(error)) from None
        extras = bound.pop(self._extras, {}) if self._extras is not None else {}
        if conflicts := extras.keys() & self._parameters.keys():
            raise errors.InvalidInput(
                f"arguments.{min(conflicts)}", "is a parameter's name and cannot be an extra argument"
            )
        return {**bound, **extras}

    @staticmethod
    def _encode(name: str, value: Any) -> strict_json.Json:
        try:
            return json_encode.encode(value)
        except json_encode.InvalidValue as error:
            raise errors.InvalidInput(f"arguments.{name}{error.path}", error.problem) from None

    # --- decoding --------------------------------------------------------------------------------------------------

    def check(self, payload: Any) -> None:
        """Raise `InvalidInput` naming the field if the function cannot be called with *payload*."""
        try:
            self.call(payload)
        except PayloadInvalid:
            # Check the stored form: a tuple, for example, is stored as a list.
            stored = strict_json.decode(strict_json.encode(payload, "payload", limits.PAYLOAD_BYTES_MAX))
            try:
                self.call(stored)
            except PayloadInvalid as error:
                raise errors.InvalidInput(f"payload{error.path}", error.problem) from None

    def call(self, payload: strict_json.Json) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments in *payload*; raise `PayloadInvalid` if it is invalid. Null means no arguments."""
        given = {} if payload is None else payload
        if not isinstance(given, dict):
            raise PayloadInvalid("arguments", "", f"must be an object, not a {type(given).__name__}")
        self._check_names(given)
        values = self._decode(given) if self._decodes else dict(given)
        if self._items is None and not self._positional_only:
            return (), values
        return self._pop_positional(values), values

    def _decode(self, given: Mapping[str, strict_json.Json]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        decoders, others, name = self._decoders, self._decoder_of_others, ""
        try:
            for name, value in given.items():
                values[name] = decoders.get(name, others)(value)
        except json_encode.InvalidValue as error:
            raise PayloadInvalid("arguments", f".{name}{error.path}", error.problem) from None
        return values

    def _check_names(self, given: Mapping[str, strict_json.Json]) -> None:
        if not self._required <= given.keys():
            missing = self._required - given.keys()
            raise PayloadInvalid("arguments", f".{min(missing)}", "is missing")
        if self._extras is None:
            if not given.keys() <= self._parameters.keys():
                problem = f"is not a parameter of {self.function.__qualname__}"
                raise PayloadInvalid("arguments", f".{min(given.keys() - self._parameters.keys())}", problem)
        elif self._extras in given:
            problem = "is the name of the variable keyword parameter, not of an argument"
            raise PayloadInvalid("arguments", f".{self._extras}", problem)

    def _pop_positional(self, values: dict[str, Any]) -> tuple[Any, ...]:
        """Remove the arguments that must be positional from *values* and return them."""
        items = values.pop(self._items, ()) if self._items is not None else ()
        leading = self._before_items if items else self._positional_only
        # An omitted argument before given positional ones gets its default.
        return (*(values.pop(parameter.name, parameter.default) for parameter in leading), *items)


def _decode_items(decoder: json_decode.Decoder, encoded: strict_json.Json) -> list[Any]:
    if not isinstance(encoded, list):
        raise json_encode.InvalidValue("must be a list")
    values = []
    for index, item in enumerate(encoded):
        try:
            values.append(decoder(item))
        except json_encode.InvalidValue as error:
            raise error.with_prefix(f"[{index}]") from None
    return values


def evaluate_annotations(function: Callable[..., Any], annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Return the *annotations* of *function* as types, without the empty ones; raise `Misconfigured` if undefined."""
    given = {name: annotation for name, annotation in annotations.items() if annotation is not Parameter.empty}
    try:
        return get_type_hints(SimpleNamespace(__annotations__=given), _globals(function))
    except NameError as error:
        raise errors.Misconfigured(
            f"{function.__qualname__}: its annotation {error.name!r} is undefined at run time; import it, "
            "or define it at the top of the module"
        ) from None


def _is_required(parameter: Parameter) -> bool:
    variable = parameter.kind in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    return parameter.default is Parameter.empty and not variable


def _globals(function: Callable[..., Any]) -> dict[str, Any]:
    names: dict[str, Any] = getattr(inspect.unwrap(function), "__globals__", {})
    return names
