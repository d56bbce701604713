"""The receiving process of a pick-up: `python -m bench.receiver NAME DURABILITY FOLDER COUNT`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.everyone import everyone
from bench.pickup import receive


def main() -> None:
    """Receive and print what each job took."""
    name, durability, folder, count = sys.argv[1:]
    [candidate] = [one for one in everyone() if (one.name, one.durability) == (name, durability)]
    print(json.dumps({"taken": receive(candidate, Path(folder), int(count))}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
