"""The benchmark of fan-out and fan-in runs."""

from pathlib import Path

from bench.fan_in import measure

import holdfast


def test_it_measures_every_step_and_leaves_no_job_waiting(tmp_path: Path) -> None:
    with holdfast.connect(str(tmp_path / "jobs.db")) as queue:
        steps = [step for step, _, _ in measure(queue, 20)]
        assert steps[0] == "settle with follow-ups"
        assert len(steps) == 5
        assert queue.counts() == {"done": 40, "ready": 1}
