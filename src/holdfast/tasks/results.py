"""Decoding of a stored result by the return annotation of its task."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any, Final, Union, get_args, get_origin

from holdfast.domain.errors import InvalidInput
from holdfast.domain.outcomes import Deferred, Done, Failed, Released
from holdfast.domain.strict_json import Json
from holdfast.tasks.arguments import evaluate_annotations
from holdfast.tasks.control_flow import OutcomeRequest
from holdfast.tasks.json_decode import Decoder, decoder_for
from holdfast.tasks.json_encode import InvalidValue

# A handler that returns one of these chooses its outcome; the annotation does not tell the type of the result.
_OUTCOMES: Final = (Done, Failed, Deferred, Released, OutcomeRequest)


def result_decoder(function: Callable[..., Any]) -> Decoder:
    """Return the function that decodes stored results of *function*; it raises `InvalidInput` if one is invalid."""
    decode = decoder_for(_result_type(function))

    def decode_result(result: Json) -> Any:
        try:
            return decode(result)
        except InvalidValue as error:
            raise InvalidInput(f"result{error.path}", error.problem) from None

    return decode_result


def _result_type(function: Callable[..., Any]) -> Any:
    annotation = inspect.signature(function).return_annotation
    annotation = evaluate_annotations(function, {"return": annotation}).get("return", Any)
    union = get_origin(annotation) in {Union, types.UnionType}
    members = get_args(annotation) if union else (annotation,)
    if any(isinstance(member, type) and issubclass(member, Done) for member in members):
        return Any
    results = [member for member in members if not (isinstance(member, type) and issubclass(member, _OUTCOMES))]
    return reduce(or_, results) if results else Any
