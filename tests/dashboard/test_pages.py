"""What pages show and what forms do, on both engines."""

from __future__ import annotations

import asyncio
import html
import re
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.types import Message, Scope

from holdfast import Failed
from holdfast.dashboard import Viewer, app, charts, jobs, rendering
from holdfast.dashboard.application import PAGES
from holdfast.dashboard.visits import SharedReads
from tests.dashboard.conftest import Browser, text_of
from tests.support.dashboard_data import HOSTILE, fill
from tests.support.service import Server

PLAIN = [view.path for view in PAGES if "{" not in view.path and view.path not in {"/live", "/jobs/find"}]


def operator(server: Server) -> Browser:
    return Browser(server.port, server.queue.admin.tokens.create("operator", roles=["admin"]).text)


def test_every_page_of_a_busy_queue_is_small_and_hostile_text_is_inert(served: Server) -> None:
    found = fill(served.queue, hostile=True)
    visitor = operator(served)
    numbers = [served.queue.get(found[name]).number for name in ("done", "failed", "running", "scheduled", "hostile")]
    session = "/sessions/one?name=" + html.escape("chat-42")
    pages = [*PLAIN, *(f"/jobs/{number}" for number in numbers), session, f"/webhooks/one?id={found['webhook']}"]
    for path in pages:
        answer = visitor.get(path)
        assert answer.status == (404 if path in {"/sessions/one", "/webhooks/one"} else 200), path
        page = text_of(answer)
        assert len(answer.content) < 60_000, path
        # Values of attributes are sent back by forms and stay as they are; nothing else does.
        shown = re.sub(r"<[^>]*>", "", page)
        assert "<script>" not in page, path
        assert "<img src=x" not in page, path
        assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in shown, path
        assert ">49<" not in page, path
        own = page.replace(html.escape(HOSTILE), "")
        assert not re.search(r"""\sstyle=|\son[a-z]+=["']|javascript:""", own), path
    assert html.escape("<script>alert(1)</script>") in text_of(visitor.get(f"/jobs/{numbers[-1]}"))


def test_every_page_of_an_empty_queue_is_shown(server: Server) -> None:
    visitor = operator(server)
    for path in PLAIN:
        assert visitor.get(path).status == (404 if path in {"/sessions/one", "/webhooks/one"} else 200), path


def test_integers_of_any_size_keep_their_digits(server: Server) -> None:
    job = server.queue.enqueue("a", {"number": 2**63 + 1})
    assert str(2**63 + 1) in text_of(operator(server).get(f"/jobs/{job.job.number}"))


def test_lanes_show_their_target_age_and_groups_lead_to_their_members(served: Server) -> None:
    found = fill(served.queue)
    visitor = operator(served)
    page = text_of(visitor.get("/flow"))
    assert "target 2m" in page
    members = re.search(r'href="/dashboard(/jobs\?q=group[^"]+)">import-7', page)
    assert members is not None
    number = served.queue.get(found["member"]).number
    assert f'href="/dashboard/jobs/{number}"' in text_of(visitor.get(html.unescape(members[1])))


def test_long_payloads_are_cut_and_say_so(server: Server) -> None:
    job = server.queue.enqueue("a", "x" * 200_000)
    answer = operator(server).get(f"/jobs/{job.job.number}")
    assert len(answer.content) < 60_000
    assert "more characters" in text_of(answer)


def test_jobs_are_listed_in_pages_and_newer_ones_are_counted(served: Server) -> None:
    served.queue.enqueue_many([{"kind": "a"} for _ in range(120)])
    visitor = operator(served)
    path, seen = "/jobs?q=kind:a", []
    while path:
        page = text_of(visitor.get(path))
        seen += re.findall(r'class="row" href="/dashboard/jobs/(\d+)"', page)
        older = re.search(r'rel="next" href="/dashboard([^"]+)"', page)
        path = html.unescape(older[1]) if older else ""
    assert len(seen) == len(set(seen)) == 120
    served.queue.enqueue_many([{"kind": "a"} for _ in range(3)])
    served.queue.enqueue("other")
    assert visitor.get(f"/jobs/newer?q=kind:a&first={seen[0]}").json == {"newer": 3, "more": False}


@pytest.mark.parametrize(
    "line",
    [
        "kind:rare",
        "state:cancelled kind:rare",
        "state:ready kind:rare",
        "tag:team=red kind:rare",
        "session:long kind:rare",
        "fingerprint:{} lane:rare",
    ],
)
def test_a_search_examines_a_bounded_number_of_jobs_and_goes_on(
    served: Server, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(jobs, "EXAMINED_MAX", 40)
    options: dict[str, object] = {"tags": {"team": "red"}} if "tag:" in line else {}
    if "session:" in line:
        options["session"] = "long"
    name, other = ("lane", {"kind": "a"}) if "lane:" in line else ("kind", {})
    created = served.queue.enqueue_many(
        [{**options, **other, name: "rare" if n % 50 == 0 else "default"} for n in range(200)]
    )
    if "cancelled" in line:
        served.queue.admin.cancel_many([one.id for one in created])
    elif "fingerprint" in line:
        claims = served.queue.claim_many(lanes=["default", "rare"], limit=200)
        served.queue.settle_many([(claim, Failed("broken", permanent=True)) for claim in claims])
        line = line.format(served.queue.admin.failures()[0].fingerprint)
    visitor = operator(served)
    path, seen, pages = f"/jobs?q={line.replace(' ', '+')}", [], 0
    while path:
        page = text_of(visitor.get(path))
        seen += re.findall(r'class="row" href="/dashboard/jobs/(\d+)"', page)
        older = re.search(r'rel="next" href="/dashboard([^"]+)">Search on', page)
        path, pages = (html.unescape(older[1]) if older else ""), pages + 1
    assert seen == [str(created[n].job.number) for n in (150, 100, 50, 0)]
    assert pages == 5


def test_a_filter_that_is_not_understood_is_explained(server: Server) -> None:
    answer = operator(server).get("/jobs?q=flavour:sweet")
    assert answer.status == 422
    assert "flavour:sweet" in text_of(answer)


def test_a_job_is_found_by_id_and_by_number(server: Server) -> None:
    job = server.queue.enqueue("a", job_id="order/42 & more")
    visitor = operator(server)
    for text in ("order%2F42%20%26%20more", str(job.job.number)):
        assert visitor.get(f"/jobs/find?q={text}").headers["location"] == f"/dashboard/jobs/{job.job.number}"
    assert visitor.get("/jobs/find?q=nothing").headers["location"] == "/dashboard/jobs?q=nothing"


def test_output_of_a_running_job_is_read_on(served: Server) -> None:
    found = fill(served.queue)
    number = served.queue.get(found["running"]).number
    visitor = operator(served)
    assert "the night is deep" in text_of(visitor.get(f"/jobs/{number}"))
    first = visitor.get(f"/jobs/{number}/output?after=0").json
    assert first["text"].startswith("The queue is long")
    assert not first["ended"]
    assert visitor.get(f"/jobs/{number}/output?after={first['last']}").json["text"] == ""


def test_a_waiting_job_says_why(served: Server) -> None:
    queue, found = served.queue, fill(served.queue)
    visitor = operator(served)

    def why(job_id: str) -> list[tuple[str, str]]:
        page = text_of(visitor.get(f"/jobs/{queue.get(job_id).number}"))
        return [(mark, html.unescape(text)) for mark, text in re.findall(r'"(check|cross|dot) break">([^<]*)<', page)]

    queue.limits.set("one", kinds=["slow"], key="tenant", concurrency=1)
    _, second = queue.enqueue("slow", lane="slow"), queue.enqueue("slow", lane="slow")
    assert len(queue.claim_many(lanes=["slow"], worker="a", limit=2)) == 1
    later = queue.enqueue("email.send", delay=86_400)
    waiting = [job for job in queue.jobs() if not job.finished and job.state != "running"]
    assert {job.state for job in waiting} >= {"scheduled", "dependent", "parked", "ready"}
    shown = {job.id: why(job.id) for job in waiting}
    assert all(shown.values())
    for job_id in (found["dependent"], found["ready"], second.id, later.id):
        marks = [mark == "cross" for mark, _ in shown[job_id]]
        assert marks == [one.blocks for one in queue.why(job_id).reasons], job_id
    paused = next(job for job in waiting if job.lane == "billing")
    assert ("cross", "lane billing is paused") in shown[paused.id]
    assert ("check", "served by worker-1") in shown[paused.id]
    assert ("cross", "limit one for key default is full: 1 of 1 running, 1 parked") in shown[second.id]
    assert why(found["done"]) == []


def test_groups_are_shown_with_their_counts_and_on_the_pages_of_unfinished_members(served: Server) -> None:
    queue, found = served.queue, fill(served.queue)
    visitor = operator(served)
    for path in ("/flow", f"/jobs/{queue.get(found['member']).number}"):
        page = text_of(visitor.get(path))
        assert "import-7" in page
        assert "0 of 3 ended" in page
    queue.groups.cancel("import-7")
    queue.groups.wait("import-7", timeout=60)
    page = text_of(visitor.get("/flow"))
    assert "3 of 3 ended, 3 cancelled" in page
    assert 'action="/dashboard/groups/cancel"' not in page


# --- actions -------------------------------------------------------------------------------------------------------


def test_each_action_is_carried_out_recorded_and_reported(served: Server) -> None:
    queue, found = served.queue, fill(served.queue)
    visitor = operator(served)
    numbers = {name: queue.get(found[name]).number for name in ("failed", "ready", "running", "scheduled")}
    steps: list[tuple[str, dict[str, str], str]] = [
        (f"/jobs/{numbers['failed']}/requeue", {}, "jobs.requeue"),
        (f"/jobs/{numbers['ready']}/priority", {"priority": "7"}, "jobs.reprioritize"),
        (f"/jobs/{numbers['scheduled']}/cancel", {}, "jobs.cancel"),
        (f"/jobs/{numbers['running']}/cancel-by-force", {}, "jobs.cancel"),
        ("/groups/cancel", {"group": "import-7", "tenant": "default"}, "groups.cancel"),
        ("/lanes/set", {"lane": "mail", "state": "paused"}, "lanes.set"),
        ("/workers/drain", {"worker": "gpu-1"}, "workers.drain"),
        ("/workers/stop", {"worker": "gpu-1"}, "workers.stop"),
        ("/limits/remove", {"limit": "invoices"}, "limits.remove"),
        ("/schedules/pause", {"schedule": "nightly", "tenant": "default"}, "schedules.pause"),
        ("/schedules/resume", {"schedule": "nightly", "tenant": "default"}, "schedules.resume"),
        ("/schedules/run", {"schedule": "nightly", "tenant": "default"}, "schedules.run"),
        ("/sessions/cancel", {"session": "chat-42", "tenant": "default"}, "sessions.cancel"),
        ("/webhooks/test", {"webhook": found["webhook"]}, "webhooks.test"),
        ("/webhooks/replay", {"webhook": found["webhook"]}, "webhooks.replay"),
        ("/webhooks/enable", {"webhook": found["webhook"]}, "webhooks.enable"),
    ]
    for path, form, action in steps:
        answer = visitor.post(path, form)
        assert answer.status == 303, (path, text_of(answer))
        entry = queue.admin.audit_log(limit=1)[0]
        assert (entry.action, entry.actor[:6]) == (action, "token:"), path
        assert 'role="status"' in text_of(visitor.get(answer.headers["location"].removeprefix("/dashboard")))
    states = {name: queue.get(found[name]).state for name in numbers}
    assert states == {"failed": "ready", "ready": "ready", "running": "cancelled", "scheduled": "cancelled"}
    assert queue.get(found["ready"]).priority == 7
    assert queue.get(found["member"]).state == "cancelled"
    other = queue.admin.tokens.create("other", roles=["read"]).token
    assert visitor.post("/tokens/revoke", {"token": other.id}).status == 303
    assert next(one for one in queue.admin.tokens.list() if one.id == other.id).revoked_at is not None


def test_rows_of_what_needs_an_operator_have_the_button_that_mends_it(served: Server) -> None:
    queue, _ = served.queue, fill(served.queue)
    visitor = operator(served)
    page = text_of(visitor.get("/"))
    fields = _form(page, "/dashboard/lanes/set")
    assert (fields["lane"], fields["state"]) == ("billing", "active")
    fingerprints = {group.fingerprint for group in queue.admin.failures()}
    requeue = _form(page, "/dashboard/jobs/preview")
    assert requeue["q"].removeprefix("state:failed fingerprint:") in fingerprints
    assert "Requeue" in text_of(visitor.post("/jobs/preview", requeue))
    assert visitor.post("/lanes/set", fields).headers["location"] == "/dashboard/"
    assert not _form(text_of(visitor.get("/")), "/dashboard/lanes/set")
    reader = Browser(served.port, queue.admin.tokens.create("reader", roles=["read"]).text)
    assert not _form(text_of(reader.get("/")), "/dashboard/jobs/preview")


def test_a_token_of_one_tenant_sees_its_own_overview(served: Server) -> None:
    found = fill(served.queue)
    running = served.queue.get(found["running"])
    viewer = Browser(served.port, served.queue.admin.tokens.create("acme", roles=["read"], tenant="acme").text)
    page = text_of(viewer.get("/"))
    assert "Working. 1 thing needs you." in page
    assert "invoice.render failed 3 times within the last hour (new)" in page
    assert "<b>3</b><span>ready</span>" in page
    assert f"#{running.number}" not in page
    assert "globex" not in page
    other = Browser(served.port, served.queue.admin.tokens.create("other", roles=["read"], tenant="nobody").text)
    assert "Idle. Nothing needs you." in text_of(other.get("/"))


def test_a_token_that_expires_manages_no_tokens(server: Server) -> None:
    token = server.queue.admin.tokens.create("short", roles=["admin"], expires_in=1000)
    visitor = Browser(server.port, token.text)
    assert visitor.post("/tokens/revoke", {"token": token.token.id}).status == 403
    assert "<h2>Tokens</h2>" not in text_of(visitor.get("/system"))


def test_a_bulk_action_counts_first_then_goes_on_page_by_page(served: Server) -> None:
    served.queue.enqueue_many([{"kind": "a"} for _ in range(700)])
    served.queue.enqueue_many([{"kind": "a"} for _ in range(500)])
    served.queue.enqueue("b")
    visitor = operator(served)
    answer = visitor.post("/jobs/preview", {"verb": "cancel", "q": "kind:a"})
    assert "Cancel 1,200 jobs" in text_of(answer)
    assert "holdfast jobs cancel" in text_of(answer)
    assert served.queue.counts() == {"ready": 1201}
    assert served.queue.admin.audit_log(limit=1)[0].action == "token.create"
    rounds = 0
    while fields := _form(text_of(answer), "/dashboard/jobs/apply"):
        answer, rounds = visitor.post("/jobs/apply", fields), rounds + 1
    assert rounds == 2
    assert served.queue.counts() == {"cancelled": 1200, "ready": 1}
    assert [one.action for one in served.queue.admin.audit_log(limit=2)] == ["jobs.cancel", "token.create"]


def _form(page: str, action: str) -> dict[str, str]:
    """Return the fields of a form of a page."""
    found = re.search(rf'<form method="post" action="{action}".*?</form>', page, re.DOTALL)
    if found is None:
        return {}
    pairs = re.findall(r'name="(\w+)" value="([^"]*)"', found[0])
    return {name: html.unescape(value) for name, value in pairs}


def test_a_bulk_action_of_a_tenant_changes_its_own_jobs_only(server: Server) -> None:
    for tenant in ("acme", "globex"):
        server.queue.enqueue("a", tenant=tenant)
    token = server.queue.admin.tokens.create("acme", roles=["admin"], tenant="acme")
    visitor = Browser(server.port, token.text)
    assert "Cancel 1 job" in text_of(visitor.post("/jobs/preview", {"verb": "cancel", "q": "kind:a"}))
    assert visitor.post("/jobs/apply", {"verb": "cancel", "q": "kind:a tenant:globex"}).status == 422
    assert visitor.post("/jobs/apply", {"verb": "cancel", "q": "kind:a"}).status == 200
    assert {job.tenant: job.state for job in server.queue.jobs()} == {"acme": "cancelled", "globex": "ready"}


def test_a_bulk_action_without_a_filter_is_refused(server: Server) -> None:
    server.queue.enqueue("a")
    assert operator(server).post("/jobs/apply", {"verb": "cancel", "q": " "}).status == 422
    assert server.queue.counts() == {"ready": 1}


def test_viewers_share_reads_of_the_whole_queue_until_one_of_them_acts() -> None:
    shared = SharedReads()
    reads = 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0)
        if reads == 2:
            raise ConnectionError("the store is gone")
        return reads

    async def look() -> None:
        assert await asyncio.gather(*(shared.read("overview", read) for _ in range(10))) == [1] * 10
        shared.clear()
        with pytest.raises(ConnectionError):
            await shared.read("overview", read)
        assert await shared.read("overview", read) == 3

    asyncio.run(look())


# --- mounted elsewhere ---------------------------------------------------------------------------------------------


def _visit(application: Any, path: str, *, client: str = "127.0.0.1", **headers: str) -> tuple[int, str]:
    """Send one request to an ASGI application."""
    sent: list[Message] = []
    names = {"host": "127.0.0.1:8000", "accept": "text/html", **headers}
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in names.items()],
        "client": (client, 50000),
        "server": ("127.0.0.1", 8000),
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    async def run() -> None:
        await application(scope, receive, send)

    asyncio.run(run())
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:]).decode()


def test_a_mounted_dashboard_without_authorize_is_for_this_machine_only(server: Server) -> None:
    server.queue.enqueue("email.send")
    mounted = Starlette(routes=[Mount("/admin/queue", app(server.harness.open_async()))])
    status, page = _visit(mounted, "/admin/queue/jobs")
    assert status == 200
    assert 'href="/admin/queue/jobs/1"' in page
    assert _visit(mounted, "/admin/queue/jobs", client="192.0.2.7")[0] == 403
    assert _visit(mounted, "/admin/queue/jobs", host="queue.example.org")[0] == 403
    assert _visit(mounted, "/admin/queue/jobs", x_forwarded_for="192.0.2.7")[0] == 403


def test_a_mounted_dashboard_asks_authorize_who_looks(server: Server) -> None:
    server.queue.enqueue("email.send", tenant="acme")
    server.queue.enqueue("email.send", tenant="globex")

    async def authorize(request: Request) -> Viewer | None:
        name = request.headers.get("x-user")
        return None if name is None else Viewer(name, ("read",), tenant="acme")

    mounted = Starlette(routes=[Mount("/queue", app(server.harness.open_async(), authorize=authorize))])
    assert _visit(mounted, "/queue/jobs", client="192.0.2.7")[0] == 403
    status, page = _visit(mounted, "/queue/jobs", client="192.0.2.7", x_user="ada")
    assert status == 200
    assert "/queue/jobs/1" in page
    assert "/queue/jobs/2" not in page
    assert "Sign out" not in page
    assert _visit(mounted, "/queue/system", x_user="ada")[0] == 403


# --- charts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waited", [0.0, 5.0, 100_000.0])
def test_a_time_line_fills_its_width_and_folds_long_waits(waited: float) -> None:
    spans = charts.placed([("waiting", waited, ""), ("failed", 1.0, "attempt 1"), ("done", 2.0, "attempt 2")])
    assert abs(spans[-1].x + spans[-1].width - charts.WIDTH) < 1
    assert all(span.width > 0 for span in spans)
    assert [span.folded for span in spans] == [waited > 100, False, False]
    assert spans[2].width > spans[1].width


def test_the_script_is_small_and_the_pages_need_nothing_else() -> None:
    assert len(rendering.asset("script.js")) < 12_000
    for name in ("script.js", "style.css"):
        assert b"http" not in rendering.asset(name)
