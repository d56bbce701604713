"""The peers in Python, each run in an environment of its own, because their needs do not agree."""
