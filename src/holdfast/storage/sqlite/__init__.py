"""The SQLite engine: its SQL, and its own way of choosing ready jobs, opening, locking and telling the time."""
