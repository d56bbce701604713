"""Isolation: handlers in processes of their own, which may crash, hang or eat memory without harm to the worker."""

inside = False
"""Whether this process is one of those in which handlers are isolated: it runs no worker of its own."""
