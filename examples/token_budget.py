"""Summarise the pages of a document within a budget of tokens, and then write one report."""

import tempfile
from pathlib import Path

import holdfast
from holdfast import Context, Worker

PAGES = 8
ASKED = 400


def call_model(page: int) -> int:
    """Return how many tokens a model has used for a page."""
    return 115 + 10 * page


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, holdfast.connect(str(Path(folder) / "jobs.db")) as queue:
        # At most 4,000 tokens per second, 1,000 of them at once.
        queue.limits.set("tokens", kinds=["summarise"], rate=4_000, per=1, burst=1_000, weight="tokens")

        @queue.task("split")
        def split(context: Context) -> int:
            for page in range(PAGES):
                context.follow_up(summarise.new(page, tokens=ASKED))
            context.follow_up("report", after=list(range(PAGES)))
            return PAGES

        @queue.task("summarise")
        def summarise(context: Context, page: int, tokens: int) -> int:
            # A model is asked for a summary of at most so many tokens, and says how many it has used.
            used = min(tokens, call_model(page))
            context.used(tokens=used)
            return used

        @queue.task("report")
        def report(context: Context) -> str:
            used = [parent.result for parent in context.parents() if isinstance(parent.result, int)]
            return f"{len(used)} pages, {sum(used):,} tokens used of {len(used) * ASKED:,} that were asked for"

        first = split.enqueue()
        with Worker(queue, concurrency=4).running():
            first.result(timeout=60)
            [last] = [job for job in queue.jobs(root=first.id) if job.kind == "report"]
            done = queue.wait(last.id, timeout=60)
        print(done.result)
        print(f"most tokens at once: {queue.limits.get('tokens').burst:,}")


if __name__ == "__main__":
    main()
