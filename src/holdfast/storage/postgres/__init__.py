"""The PostgreSQL engine: many writers on many machines, with the server's clock."""
