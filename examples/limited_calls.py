"""Call a model for pages of two customers, at most two calls per customer at once, then write a report for each."""

import tempfile
from collections import Counter
from pathlib import Path

import holdfast
from holdfast import Done


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, holdfast.connect(str(Path(folder) / "jobs.db")) as queue:
        queue.limits.set("calls", kinds=["llm.call"], key="tenant", concurrency=2)
        for customer in ("ada", "grace"):
            pages = [queue.enqueue("llm.call", {"page": page}, tenant=customer) for page in range(5)]
            queue.enqueue("report", tenant=customer, after=[page.id for page in pages])

        at_once: Counter[str] = Counter()
        while claims := queue.claim_many(limit=10):
            running = Counter(claim.job.tenant for claim in claims if claim.job.kind == "llm.call")
            at_once |= running
            reports = [claim.job.tenant for claim in claims if claim.job.kind == "report"]
            print(f"{running.total()} calls, reports: {reports}")
            queue.settle_many([(claim, Done()) for claim in claims])
        print(f"most calls at once: {dict(sorted(at_once.items()))}")


if __name__ == "__main__":
    main()
