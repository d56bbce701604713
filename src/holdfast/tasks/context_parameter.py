"""Detects whether a task's function takes a `Context`, which must be its first parameter.

Annotations are inspected without evaluating them, because a name may be imported for the type checker only.
"""

import ast
import inspect
from collections.abc import Callable, Iterator
from inspect import Parameter
from typing import Annotated, Any, Final, ForwardRef, Literal, get_args, get_origin

from holdfast.domain import errors
from holdfast.tasks import context, session_context

_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def takes_context(function: Callable[..., Any], *, in_session: bool = False) -> bool:
    """Return whether *function* takes a `Context` as its first parameter; raise `InvalidInput` if it is misplaced.

    *in_session* marks the function of a session task, which takes a `SessionContext`.
    """
    parameters = list(inspect.signature(function).parameters.values())
    contexts = [parameter for parameter in parameters if _mentions_context(parameter.annotation, function)]
    for parameter in contexts:
        is_first = parameter is parameters[0] and parameter.kind in _POSITIONAL
        if problem := _problem(parameter, function, is_first=is_first, in_session=in_session):
            name = getattr(function, "__name__", "handler")
            signature = "context: SessionContext, messages" if in_session else "context: Context, ..."
            raise errors.InvalidInput(f"function.{parameter.name}", f"{problem}; write def {name}({signature})")
    return bool(contexts)


def _problem(parameter: Parameter, function: Callable[..., Any], *, is_first: bool, in_session: bool) -> str | None:
    """Return why *function* cannot take its context as *parameter*."""
    context_class = _context_class(parameter.annotation, function)
    if context_class is None:
        return (
            "is annotated with a type that contains Context; the worker passes the context, a payload cannot hold it"
        )
    if not in_session and issubclass(context_class, session_context.BaseSessionContext):
        return f"is a {context_class.__name__}, which only functions declared with session_task take"
    if not is_first:
        return "is a context; a function takes one context, as its first positional parameter"
    if parameter.default is not Parameter.empty:
        return "is a context with a default value; the worker always passes one"
    return None


def _mentions_context(annotation: Any, function: Callable[..., Any]) -> bool:
    return any(issubclass(found, context.Context) for found in _classes_in(annotation, function))


def _context_class(annotation: Any, function: Callable[..., Any]) -> type | None:
    """Return the context class that the whole *annotation* names, without its type arguments."""
    if isinstance(annotation, str):
        expression = _parse(annotation)
        if isinstance(expression, ast.Constant):
            return _context_class(expression.value, function)
        found = _resolve(expression.value if isinstance(expression, ast.Subscript) else expression, function)
    else:
        found = get_origin(annotation) or annotation
    return found if isinstance(found, type) and issubclass(found, context.Context) else None


def _classes_in(annotation: Any, function: Callable[..., Any]) -> Iterator[type]:
    """Yield the classes that *annotation* names, at any depth."""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        yield from _classes_in_text(annotation, function)
        return
    origin = get_origin(annotation)
    if isinstance(origin or annotation, type):
        yield origin or annotation
    arguments = get_args(annotation)
    if origin is Annotated:
        arguments = arguments[:1]
    if origin is not Literal:
        for argument in arguments:
            yield from _classes_in(argument, function)


def _classes_in_text(text: str, function: Callable[..., Any]) -> Iterator[type]:
    expression = _parse(text)
    if isinstance(expression, ast.Constant):
        yield from _classes_in(expression.value, function)
        return
    for node in ast.walk(expression):
        if isinstance(found := _resolve(node, function), type):
            yield found


def _parse(annotation: str) -> ast.expr:
    try:
        return ast.parse(annotation.strip(), mode="eval").body
    except SyntaxError:
        # The error is reported when the annotation is evaluated.
        return ast.Constant(None)


def _resolve(node: ast.AST, function: Callable[..., Any]) -> object:
    """Return the object that *node* names, or None; assume `Context` for a name imported for type checking only."""
    if not isinstance(node, ast.Name | ast.Attribute):
        return None
    found: Any = getattr(inspect.unwrap(function), "__globals__", {})
    *_, last = names = ast.unparse(node).split(".")
    for name in names:
        found = found.get(name) if isinstance(found, dict) else getattr(found, name, None)
    return context.Context if found is None and last == "Context" else found
