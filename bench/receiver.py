"""The receiving process of a pick-up: `python -m bench.receiver ENGINE NAME DURABILITY LOCATION COUNT`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.pickup import receive
from bench.registry import all_candidates


def main() -> None:
    """Receive jobs and print the seconds of each."""
    engine, name, durability, location, count = sys.argv[1:]
    candidates = all_candidates("sqlite") if engine == "sqlite" else all_candidates("postgres")
    [candidate] = [one for one in candidates if (one.name, one.durability) == (name, durability)]
    taken = receive(candidate, Path(location) if engine == "sqlite" else location, int(count))
    print(json.dumps({"taken": taken}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
