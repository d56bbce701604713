"""Python peers, each in its own environment, because their requirements conflict."""
