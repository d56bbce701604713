"""A task takes its `Context` as the first parameter; anything else is refused when the task is declared."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Optional

import pytest

from holdfast import Context, InvalidInput, SessionContext, Tasks
from holdfast.types import ContextTask, Task


def _second(picture: str, context: Context) -> None: ...
def _keyword_only(*, context: Context) -> None: ...
def _variable(*context: Context) -> None: ...
def _variable_keyword(**context: Context) -> None: ...
def _two(first: Context, context: Context) -> None: ...
def _with_default(context: Context = None) -> None: ...  # type: ignore[assignment]
def _optional(context: Context | None) -> None: ...
def _quoted(picture: str, context: "Context") -> None: ...  # noqa: UP037
def _in_a_list(picture: str, context: list[Context]) -> None: ...
def _with_metadata(context: Annotated[Context, "mine"]) -> None: ...
def _of_a_session(context: SessionContext[str], picture: str) -> None: ...


class Pictures:
    def resize(self, context: Context) -> None: ...


MISPLACED = [
    _second,
    _keyword_only,
    _variable,
    _variable_keyword,
    _two,
    _with_default,
    _optional,
    _quoted,
    _in_a_list,
    _with_metadata,
    _of_a_session,
    Pictures.resize,
]


@pytest.mark.parametrize("function", MISPLACED, ids=lambda function: function.__name__.strip("_"))
def test_a_misplaced_context_is_refused_when_the_task_is_declared(function: Any) -> None:
    tasks = Tasks()

    with pytest.raises(InvalidInput) as caught:
        tasks.task("picture.resize")(function)

    assert caught.value.field == "function.context"
    assert f"write def {function.__name__}(context: Context, ...)" in str(caught.value)
    assert len(tasks.tasks) == 0


@pytest.mark.parametrize("annotation", [Optional[Context], list["Context"], Annotated[Context, "mine"]])  # noqa: UP045
def test_a_misplaced_context_is_refused_where_annotations_are_evaluated(annotation: Any) -> None:
    def resize(context: Any) -> None: ...

    resize.__annotations__["context"] = annotation

    with pytest.raises(InvalidInput, match="the worker passes the context, a payload cannot hold it"):
        Tasks().task("picture.resize")(resize)


def test_a_misplaced_session_context_is_refused_when_the_task_is_declared() -> None:
    def answer(messages: list[str], context: SessionContext[str]) -> None: ...

    with pytest.raises(InvalidInput, match=r"write def answer\(context: SessionContext, messages\)") as caught:
        Tasks().session_task("chat.message")(answer)  # type: ignore[arg-type]

    assert caught.value.field == "function.context"


def test_a_context_that_is_only_text_or_a_result_is_not_a_context_parameter() -> None:
    def resize(mode: Literal["Context"], size: Annotated[int, "Context"], later: Undefined) -> Context: ...  # type: ignore[empty-body, name-defined]  # noqa: F821

    for annotated in (
        dict(resize.__annotations__),
        {"mode": Literal["Context"], "size": Annotated[int, "Context"], "return": Context},
    ):
        resize.__annotations__ = annotated
        task = Tasks().task("picture.resize")(resize)

        assert isinstance(task, Task)
        assert not isinstance(task, ContextTask)
