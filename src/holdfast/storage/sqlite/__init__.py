"""The SQLite engine: its SQL, ready selection, connections, locking and clock."""
