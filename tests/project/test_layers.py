"""Imports go one way, the rules are pure, and only storage contains SQL."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys

import pytest

from tests.project.sources import Module, assert_none, imports, modules, texts

LAYERS = [
    "domain",
    "storage",
    "operations",
    "remote",
    "tasks",
    "client",
    "webhooks",
    "worker",
    "telemetry",
    "testing",
    "service",
    "dashboard",
    "gateway",
    "cli",
]
# Modules that make a rule depend on time, environment or chance.
IMPURE = {
    "asyncio",
    "io",
    "os",
    "pathlib",
    "random",
    "secrets",
    "socket",
    "sqlite3",
    "subprocess",
    "threading",
    "time",
}
SQL = re.compile(
    r"\bselect\b.+\bfrom\b|\binsert (or \w+ )?into\b|\bupdate \w+ set\b|\bdelete from\b|\bpragma \w+"
    r"|\b(create|drop|alter) (table|index|view)\b|\bbegin (immediate|deferred|exclusive)\b|\bvacuum\b",
    re.IGNORECASE | re.DOTALL,
)

# Packages that an engine may use, installed by the extra of its name.
ENGINE_DRIVERS = {"holdfast.storage.sqlite": {"sqlite3"}, "holdfast.storage.postgres": {"psycopg"}}
ENGINES = tuple(ENGINE_DRIVERS)

# The demo acts as an application with its own table.
ACTS_AS_A_USER = ("holdfast.cli.demo.worker", "holdfast.cli.demo.checks")


def _within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _layer_of(imported: str) -> str:
    parts = imported.split(".")
    return parts[1] if len(parts) > 1 else ""


def _foreign(module: Module) -> set[str]:
    """Return the other packages that *module* imports."""
    return {name.split(".")[0] for name in imports(module)} - {"holdfast"}


def _wrong_imports(module: Module) -> list[str]:
    above = LAYERS[LAYERS.index(module.layer) + 1 :]
    ours = [name for name in imports(module) if name.split(".")[0] == "holdfast"]
    wrong = [name for name in ours if _layer_of(name) in above]
    if module.layer not in {"gateway", "cli"}:
        # The top-level package imports the client, so lower layers must not import it; the others are programs on it.
        wrong += [name for name in ours if _layer_of(name) not in [*LAYERS, "version", "json_view"]]
    return wrong


@pytest.mark.slow("it parses all sources")
def test_a_module_imports_only_its_own_layer_and_those_below() -> None:
    assert_none((module.name, wrong) for module in modules() if module.layer and (wrong := _wrong_imports(module)))


def test_a_program_can_import_any_module_first() -> None:
    imported = {module.name: _imported_first(module) for module in modules()}

    # Raises `CycleError`, with the modules in its message.
    graphlib.TopologicalSorter(imported).prepare()


def _imported_first(module: Module) -> set[str]:
    """Return the modules of the package that are loaded while the body of *module* runs."""
    ours = {module.name for module in modules()}
    found = set()
    for node in module.tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # An imported name is a module or an attribute of one.
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & ours or {str(node.module)}
    return found & ours


def test_every_layer_is_known_and_has_modules() -> None:
    assert {module.layer for module in modules()} == {"", *LAYERS}


def test_the_rules_use_the_standard_library_only_and_nothing_impure() -> None:
    rules = [(module.name, _foreign(module)) for module in modules() if module.layer == "domain"]

    assert_none((name, foreign) for name, foreign in rules if foreign & IMPURE or foreign - sys.stdlib_module_names)


def test_the_library_needs_only_the_standard_library_and_the_driver_of_an_engine() -> None:
    found = []
    for module in modules():
        if module.layer in {"storage", "operations", "tasks", "client", "worker"}:
            drivers = [needed for engine, needed in ENGINE_DRIVERS.items() if _within(module.name, (engine,))]
            found.append((module.name, _foreign(module) - set().union(*drivers) - sys.stdlib_module_names))

    assert_none((name, foreign) for name, foreign in found if foreign)


def test_a_program_on_sqlite_loads_no_other_driver() -> None:
    program = "import holdfast, sys; holdfast.connect(':memory:').enqueue('work'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert ENGINE_DRIVERS["holdfast.storage.postgres"] & set(loaded.stdout.split()) == set()


def test_operations_import_no_engine() -> None:
    found_modules = [module for module in modules() if module.name.startswith("holdfast.operations")]

    assert found_modules
    for module in found_modules:
        assert_none(name for name in imports(module) if _within(name, ENGINES))


def test_no_engine_imports_another() -> None:
    found = []
    for module in modules():
        others = tuple(engine for engine in ENGINES if not _within(module.name, (engine,)))
        if _within(module.name, ENGINES):
            found += [(module.name, name) for name in imports(module) if _within(name, others)]

    assert_none(found)


def test_only_storage_contains_sql() -> None:
    found = []
    for module in modules():
        if module.layer != "storage":
            spoken = [text for _, text in texts(module) if SQL.search(text)]
            plays = _within(module.name, ACTS_AS_A_USER)
            found += [(module.name, text) for text in spoken if not plays or "holdfast_" in text]

    assert_none(found)


def test_only_an_engine_uses_its_driver() -> None:
    found = []
    for module in modules():
        for engine, drivers in ENGINE_DRIVERS.items():
            if not _within(module.name, (engine,)):
                found += [(module.name, name) for name in imports(module) if name.split(".")[0] in drivers]

    assert_none(found)


def test_sql_is_recognised() -> None:
    statements = [
        "select seq\n  from holdfast_job",
        "INSERT INTO holdfast_job (id) values (?)",
        "insert or ignore into holdfast_lane values (1)",
        "update holdfast_job set state = 'ready'",
        "delete from holdfast_event",
        "PRAGMA synchronous",
        "create table t (x)",
        "begin immediate",
    ]
    assert_none(text for text in statements if not SQL.search(text))


def test_prose_is_not_recognised_as_sql() -> None:
    prose = ["select a job", "update the job", "begin", "deleted from disk"]
    assert_none(text for text in prose if SQL.search(text))
