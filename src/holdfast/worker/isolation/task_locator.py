"""Finding a worker's tasks in another process: by the modules that declare them, which are imported there too.

A function is code, and code does not travel: only where it is declared does. So a task has to be declared when its
module is imported, as one inside a function is not.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import traceback
from types import ModuleType
from typing import Any

from holdfast.domain.errors import Misconfigured
from holdfast.tasks.session_tasks import BaseSessionTask
from holdfast.tasks.task import MAIN_MODULES, AnyTask, TaskRegistry
from holdfast.worker.isolation.channel import Message


class NotFound(Exception):  # noqa: N818  # what is said of the task
    """The task is not declared by importing its module."""


# --- in the worker --------------------------------------------------------------------------------------------------


def place_of(task: AnyTask) -> Message:
    """Return where another process finds the task, or raise `Misconfigured` if it cannot."""
    name = _name_of(task)
    if isinstance(task, BaseSessionTask):
        raise Misconfigured(
            f"task {task.kind!r} cannot run in a process of its own: the turns of a session need the worker's store"
        )
    if "<locals>" in name or "<lambda>" in name:
        raise Misconfigured(
            f"task {task.kind!r} cannot run in a process of its own: {name} is made while the program runs;"
            " declare it at the top level of a module"
        )
    modules = [module for module in (task.declared_in, task.function.__module__) if module]
    if "__main__" in modules and main_place() is None:
        raise Misconfigured(
            f"task {task.kind!r} cannot run in a process of its own: it is declared in a session without a file;"
            " declare it in a module"
        )
    return {"modules": list(dict.fromkeys(modules)), "name": name, "policy": repr(task.policy)}


def _name_of(task: AnyTask) -> str:
    function: Any = task.function
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"


def surroundings() -> Message:
    """Return what another process needs in order to import what this one has imported."""
    return {"path": [entry or os.getcwd() for entry in sys.path], "arguments": sys.argv, "main": main_place()}  # noqa: PTH109  # as the import system has it


def main_place() -> Message | None:
    """Return where this program's own module comes from; none if from no file."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return {"module": spec.name}
    path = getattr(main, "__file__", None)
    return None if path is None or not os.path.exists(path) else {"path": os.path.abspath(path)}  # noqa: PTH100, PTH110


# --- in the other process -------------------------------------------------------------------------------------------


class TaskLocator:
    """Imports modules and remembers the tasks found in them."""

    def __init__(self, surroundings: Message) -> None:
        sys.path[:] = surroundings["path"]
        sys.argv[:] = surroundings["arguments"]
        self._main: Message | None = surroundings["main"]
        self._found: dict[tuple[str, str], AnyTask] = {}

    def find(self, kind: str, place: Message) -> AnyTask:
        """Return the task, or raise `NotFound` with what is wrong."""
        key = (kind, place["name"])
        found = self._found.get(key)
        if found is None:
            for module in place["modules"]:
                self._import(module)
            found = self._found[key] = _declared(kind, place)
        return found

    def _import(self, module: str) -> None:
        try:
            if module == "__main__":
                self._import_main()
            else:
                importlib.import_module(module)
        except BaseException as error:  # a module may do anything, such as exit
            shown = "".join(traceback.format_exception(error)).rstrip()
            raise NotFound(f"importing {module!r} failed there:\n{shown}") from error

    def _import_main(self) -> None:
        """Run the program's own module under the name that processes of the standard library give it."""
        if "__mp_main__" in sys.modules or self._main is None:
            return
        ours = ModuleType("__mp_main__")
        if "module" in self._main:
            content = runpy.run_module(self._main["module"], run_name="__mp_main__", alter_sys=True)
        else:
            content = runpy.run_path(self._main["path"], run_name="__mp_main__")
        ours.__dict__.update(content)
        sys.modules["__main__"] = sys.modules["__mp_main__"] = ours


def _declared(kind: str, place: Message) -> AnyTask:
    found = [task for task in TaskRegistry.everywhere(kind) if _same(_name_of(task), place["name"])]
    if not found:
        modules = " and ".join(map(repr, place["modules"]))
        raise NotFound(
            f"importing {modules} does not declare task {kind!r} of {place['name']};"
            " declare it at the top level of the module, not under a condition or in a function"
        )
    # The same function may be a task of several queues, with other words for each.
    return next((task for task in found if repr(task.policy) == place["policy"]), found[0])


def _same(here: str, there: str) -> bool:
    head, dot, rest = here.partition(".")
    return here == there or (head == MAIN_MODULES[1] and f"{MAIN_MODULES[0]}{dot}{rest}" == there)
