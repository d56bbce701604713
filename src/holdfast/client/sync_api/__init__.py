# Generated from client/async_api/__init__.py by scripts/make-sync; do not edit.
"""The sync API."""
