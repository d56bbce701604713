"""The client: `Queue`, `AsyncQueue` and their operations."""
