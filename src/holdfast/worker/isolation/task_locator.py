"""Locating a worker's tasks in another process by the modules that declare them.

Functions are not sent to the other process, only the names of their modules. So importing the module must declare
the task; a task that is declared inside a function cannot be found.
"""

import importlib
import os
import runpy
import sys
import traceback
from types import ModuleType
from typing import Any

from holdfast.client import queue_state
from holdfast.domain import errors
from holdfast.tasks import definition
from holdfast.tasks.task import MAIN_MODULES
from holdfast.worker.isolation.channel import Message


class NotFound(Exception):  # noqa: N818
    """Importing the module does not declare the task."""


# --- in the worker --------------------------------------------------------------------------------------------------


def locate(task: definition.TaskDefinition) -> Message:
    """Return where another process finds the task; raise `Misconfigured` if it cannot."""
    name = _name_of(task)
    if task.is_session_task:
        raise errors.Misconfigured(
            f"task {task.kind!r} cannot run isolated: the turns of a session need the worker's store"
        )
    if "<locals>" in name or "<lambda>" in name:
        raise errors.Misconfigured(
            f"task {task.kind!r} cannot run isolated: {name} is created at run time;"
            " declare it at the top level of a module"
        )
    modules = [module for module in (task.declared_in, task.function.__module__) if module]
    if "__main__" in modules and main_location() is None:
        raise errors.Misconfigured(
            f"task {task.kind!r} cannot run isolated: it is declared in an interactive session;"
            " declare it in a module"
        )
    included_in, queue = task.queue_reference.included_in, task.queue_reference.known
    if included_in is not None and queue is not None:
        state = queue_state.state_of(queue)
        if state.middleware or state.codec is not None:
            # The module of a collection need not import the queue, whose middleware and codec are needed too.
            modules.append(included_in)
    return {"modules": list(dict.fromkeys(modules)), "name": name, "policy": repr(task.policy)}


def _name_of(task: definition.TaskDefinition) -> str:
    function: Any = task.function
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"


def import_environment() -> Message:
    """Return what another process needs to import this one's modules: the path, arguments and main module."""
    return {"path": [entry or os.getcwd() for entry in sys.path], "arguments": sys.argv, "main": main_location()}  # noqa: PTH109  # the import system does the same


def main_location() -> Message | None:
    """Return the location of the main module; None if it has no file."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return {"module": spec.name}
    path = getattr(main, "__file__", None)
    return None if path is None or not os.path.exists(path) else {"path": os.path.abspath(path)}  # noqa: PTH100, PTH110


# --- in the other process -------------------------------------------------------------------------------------------


class TaskLocator:
    """Imports modules and remembers the tasks found in them."""

    def __init__(self, import_environment: Message) -> None:
        sys.path[:] = import_environment["path"]
        sys.argv[:] = import_environment["arguments"]
        self._main: Message | None = import_environment["main"]
        self._found: dict[tuple[str, str], definition.TaskDefinition] = {}

    def find(self, kind: str, location: Message) -> definition.TaskDefinition:
        """Return the task; raise `NotFound` with the reason if it cannot be found."""
        key = (kind, location["name"])
        found = self._found.get(key)
        if found is None:
            for module in location["modules"]:
                self._import(module)
            found = self._found[key] = _find_declared(kind, location)
        return found

    def _import(self, module: str) -> None:
        try:
            if module == "__main__":
                self._import_main()
            else:
                importlib.import_module(module)
        except BaseException as error:  # importing a module may raise anything, such as SystemExit
            shown = "".join(traceback.format_exception(error)).rstrip()
            raise NotFound(f"importing {module!r} failed in the isolated process:\n{shown}") from error

    def _import_main(self) -> None:
        """Run the main module under the name that `multiprocessing` uses."""
        if "__mp_main__" in sys.modules or self._main is None:
            return
        ours = ModuleType("__mp_main__")
        if "module" in self._main:
            content = runpy.run_module(self._main["module"], run_name="__mp_main__", alter_sys=True)
        else:
            content = runpy.run_path(self._main["path"], run_name="__mp_main__")
        ours.__dict__.update(content)
        sys.modules["__main__"] = sys.modules["__mp_main__"] = ours


def _find_declared(kind: str, location: Message) -> definition.TaskDefinition:
    found = [
        task for task in definition.TaskTable.find_in_process(kind) if _same_name(_name_of(task), location["name"])
    ]
    if not found:
        modules = " and ".join(map(repr, location["modules"]))
        raise NotFound(
            f"importing {modules} does not declare task {kind!r} of {location['name']};"
            " declare it at the top level of the module, not under a condition or in a function"
        )
    # The same function may be a task of several queues, with different options for each.
    return next((task for task in found if repr(task.policy) == location["policy"]), found[0])


def _same_name(here: str, there: str) -> bool:
    head, dot, rest = here.partition(".")
    return here == there or (head == MAIN_MODULES[1] and f"{MAIN_MODULES[0]}{dot}{rest}" == there)
