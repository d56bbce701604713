"""The half of the bench that measures on PostgreSQL: one server of its own, a fresh database for each measurement."""
