"""Isolation: handlers in separate processes, which may crash, hang or use up memory without harm to the worker."""

inside = False
"""Whether this is an isolated process, or the fork server: it must not start a worker."""
