"""The async API."""
