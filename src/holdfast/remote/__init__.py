"""A store behind HTTP: each operation is translated into a call of the service."""
