"""Importing this module imports all modules of the command line, for processes forked from it."""

from __future__ import annotations

import importlib
import pkgutil

import holdfast.cli

for module in pkgutil.walk_packages(holdfast.cli.__path__, "holdfast.cli."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
