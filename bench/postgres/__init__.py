"""The PostgreSQL part of the bench: a temporary server, and a new database for each measurement."""
