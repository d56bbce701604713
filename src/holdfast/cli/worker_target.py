"""Resolve `MODULE:QUEUE` to a queue, with an error message that names the problem."""

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import holdfast
from holdfast.cli import errors

AnyQueue: TypeAlias = holdfast.Queue | holdfast.AsyncQueue

_SHAPE = "write MODULE:QUEUE, as in app.jobs:queue for the variable queue in app/jobs.py"


def find_queue(target: str) -> AnyQueue:
    """Import the module of *target*, from the current directory first, and return the queue."""
    module_name, separator, name = target.partition(":")
    if not separator or not module_name or not name or module_name.endswith(".py"):
        raise errors.CommandError(f"{target!r} does not name a queue", hint=_hint_of_shape(target))
    module = _import(module_name)
    found = _attribute(module, name)
    if found is None:
        raise errors.CommandError(f"module {module_name!r} has no {name!r}", hint=_hint_of_names(module, module_name))
    if not isinstance(found, holdfast.Queue | holdfast.AsyncQueue):
        raise errors.CommandError(
            f"{target!r} is not a queue but {_article(type(found).__name__)}",
            hint=_hint_of_names(module, module_name),
        )
    return found


def find_function(target: str | None, option: str) -> Callable[..., Any] | None:
    """Import the module of *target* and return the function, or None if *target* is None."""
    if target is None:
        return None
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise errors.CommandError(
            f"{option} {target!r} does not name a function",
            hint="write MODULE:FUNCTION, as in app.models:load for the function load in app/models.py",
        )
    found: Callable[..., Any] | None = _attribute(_import(module_name), name)
    if not callable(found):
        raise errors.CommandError(f"{option}: module {module_name!r} has no function {name!r}")
    return found


def _attribute(module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _import(module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise errors.CommandError(
                f"there is no module {error.name!r}",
                hint="run the command in the module's directory, or add that directory to PYTHONPATH",
            ) from None
        raise _failed(module_name, error) from error
    except Exception as error:
        raise _failed(module_name, error) from error


def _failed(module_name: str, error: Exception) -> errors.CommandError:
    # Name the position in the user's code, without the frames of importlib.
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename][1:]
    position = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return errors.CommandError(
        f"importing {module_name!r} failed: {type(error).__name__}: {error}{position}",
        hint=f"'{Path(sys.executable).name} -c \"import {module_name}\"' shows the full traceback",
    )


def _hint_of_shape(target: str) -> str:
    module_name, _, name = target.partition(":")
    return f"write {module_name[:-3].replace('/', '.')}:{name or 'queue'}" if module_name.endswith(".py") else _SHAPE


def _hint_of_names(module: ModuleType, module_name: str) -> str:
    queues = [
        f"{module_name}:{name}"
        for name, value in vars(module).items()
        if isinstance(value, holdfast.Queue | holdfast.AsyncQueue)
    ]
    return f"there is {', '.join(queues)}" if queues else "define one there: queue = holdfast.connect('jobs.db')"


def _article(noun: str) -> str:
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
