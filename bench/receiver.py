"""The receiving process of a pick-up: `python -m bench.receiver ENGINE NAME DURABILITY GROUND COUNT`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.pickup import receive
from bench.registry import everyone


def main() -> None:
    """Receive and print what each job took."""
    engine, name, durability, ground, count = sys.argv[1:]
    candidates = everyone("sqlite") if engine == "sqlite" else everyone("postgres")
    [candidate] = [one for one in candidates if (one.name, one.durability) == (name, durability)]
    taken = receive(candidate, Path(ground) if engine == "sqlite" else ground, int(count))
    print(json.dumps({"taken": taken}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
