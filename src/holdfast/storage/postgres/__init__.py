"""The PostgreSQL engine: many writers on many machines, one server that keeps the time."""
