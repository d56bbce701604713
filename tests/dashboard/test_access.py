"""Who may see and do what: generated from the table of pages and actions."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from holdfast.dashboard.application import ACTIONS, PAGES, PUBLIC, VIEWS
from holdfast.dashboard.visits import View
from holdfast.domain.access import ROLES, Role
from holdfast.service.routes import ROUTES
from tests.dashboard.conftest import Browser, text_of
from tests.support.dashboard_data import fill
from tests.support.service import Answer, Server


def browser(server: Server, *roles: Role, tenant: str | None = None, kinds: list[str] | None = None) -> Browser:
    token = server.queue.admin.tokens.create("test", roles=roles, tenant=tenant, kinds=kinds)
    return Browser(server.port, token.text)


def visit(browser: Browser, view: View, number: int = 1) -> Answer:
    """Open a page, or send an empty form."""
    path = view.path.replace("{number}", str(number))
    if view.path == "/live":
        # A page of JSON, because the test does not read a stream.
        return browser.get(path, {"Accept": "application/json"})
    return browser.get(path) if view.method == "GET" else browser.post(path)


def test_every_page_asks_a_stranger_to_sign_in_and_every_form_is_refused(server: Server) -> None:
    stranger = Browser(server.port)
    for view in (*PAGES, *ACTIONS):
        answer = visit(stranger, view)
        if view.method == "GET":
            assert answer.status == 303, view
            assert answer.headers["location"].startswith("/dashboard/sign-in?next="), view
        else:
            assert answer.status == 401, view


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_open_and_send_exactly_what_the_service_grants_it(server: Server, role: Role) -> None:
    roles = {route.name: route.roles for route in ROUTES}
    visitor = browser(server, role)
    for view in (*PAGES, *ACTIONS):
        allowed = role == "admin" or role in (roles[str(view.endpoint)] or ())
        assert (visit(visitor, view).status == 403) is not allowed, view


def test_a_reader_changes_nothing_by_any_form(server: Server) -> None:
    fill(server.queue)
    reader = browser(server, "read")
    before = server.queue.counts(), server.queue.admin.audit_log(), server.queue.lanes.list()
    fields = {"lane": "mail", "state": "paused", "verb": "cancel", "q": "lane:mail", "worker": "gpu-1"}
    fields |= {"schedule": "nightly", "session": "chat-42", "priority": "3", "webhook": "x", "token": "x"}
    fields["group"] = "import-7"
    for view in ACTIONS:
        for number in (1, 3, 26):
            assert reader.post(view.path.replace("{number}", str(number)), fields).status == 403, view
    assert (server.queue.counts(), server.queue.admin.audit_log(), server.queue.lanes.list()) == before
    page = text_of(reader.get("/jobs/26"))
    assert '<form method="post" action="/dashboard/jobs/' not in page


def test_no_action_is_a_get_and_every_view_but_signing_in_needs_a_token() -> None:
    assert {view.method for view in ACTIONS} == {"POST"}
    assert [view.path for view in VIEWS if view.roles is None] == [view.path for view in PUBLIC]
    assert [view.path for view in ACTIONS if "read" in (view.roles or ())] == []


def test_another_tenants_things_are_not_found(server: Server) -> None:
    found = fill(server.queue)
    others = server.queue.get(found["running"])
    own = next(one for one in server.queue.jobs(tenant="acme"))
    visitor = browser(server, "admin", tenant="acme")
    assert visitor.get(f"/jobs/{own.number}").status == 200
    for view in (*PAGES, *ACTIONS):
        if "{number}" in view.path:
            assert visit(visitor, view, others.number).status == 404, view
    assert text_of(visitor.get(f"/jobs/{others.number}")) == text_of(visitor.get("/jobs/99999")).replace(
        "99999", str(others.number)
    )
    listed = text_of(visitor.get("/jobs"))
    assert f'/jobs/{own.number}"' in listed
    assert f'/jobs/{others.number}"' not in listed
    assert visitor.get("/jobs?q=tenant:globex").status == 422
    assert visitor.get("/sessions/one?name=chat-42&tenant=default").status == 403
    assert "chat-42" not in text_of(visitor.get("/sessions"))
    assert found["webhook"] not in text_of(visitor.get("/webhooks"))
    assert "import-7" not in text_of(visitor.get("/flow"))
    assert visitor.post("/groups/cancel", {"group": "import-7"}).status == 404
    assert visitor.post("/groups/cancel", {"group": "import-7", "tenant": "default"}).status == 403
    for path in ("/workers", "/system"):
        assert visitor.get(path).status == 403
    assert visitor.post("/lanes/set", {"lane": "mail", "state": "paused"}).status == 403
    for path in ("/schedules/pause", "/schedules/run"):
        assert visitor.post(path, {"schedule": "nightly"}).status == 404
        assert visitor.post(path, {"schedule": "nightly", "tenant": "default"}).status == 403


def test_jobs_outside_of_the_kinds_of_a_token_are_not_found(server: Server) -> None:
    fill(server.queue)
    visitor = browser(server, "read", kinds=["email.send"])
    pages = {one.number: visitor.get(f"/jobs/{one.number}").status for one in server.queue.jobs()}
    kinds = {one.number: one.kind for one in server.queue.jobs()}
    assert {kinds[number] for number, status in pages.items() if status == 200} == {"email.send"}
    assert "invoice.render" not in text_of(visitor.get("/jobs"))


# --- signing in ----------------------------------------------------------------------------------------------------


def test_signing_in_sets_a_cookie_that_scripts_and_other_sites_cannot_use(server: Server) -> None:
    token = server.queue.admin.tokens.create("operator", roles=["admin"]).text
    visitor = Browser(server.port)
    assert visitor.get("/jobs?q=state:failed").headers["location"] == (
        "/dashboard/sign-in?next=%2Fjobs%3Fq%3Dstate%3Afailed"
    )
    answer = visitor.post("/sign-in", {"token": f" {token} ", "next": "/jobs?q=state:failed"})
    assert (answer.status, answer.headers["location"]) == (303, "/dashboard/jobs?q=state:failed")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=lax", "Path=/dashboard"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert visitor.get("/jobs").status == 200
    behind_tls = Browser(server.port).post("/sign-in", {"token": token}, X_Forwarded_Proto="https")
    assert "Secure" in behind_tls.headers["set-cookie"].split("; ")
    assert visitor.post("/sign-out").status == 303
    assert visitor.get("/jobs").status == 303


@pytest.mark.parametrize("address", ["//evil.example", "https://evil.example", "/\\evil.example", "x", "/\r\nX: y"])
def test_signing_in_never_leads_to_another_site(server: Server, address: str) -> None:
    token = server.queue.admin.tokens.create("operator", roles=["read"]).text
    answer = Browser(server.port).post("/sign-in", {"token": token, "next": address})
    assert answer.headers["location"] == "/dashboard/"


def test_a_wrong_token_or_one_without_the_role_is_refused_and_sets_no_cookie(server: Server) -> None:
    worker = server.queue.admin.tokens.create("worker", roles=["work"]).text
    for text in ("", "hf_x", worker[:-3] + "abc", worker):
        answer = Browser(server.port).post("/sign-in", {"token": text})
        assert (answer.status, answer.headers["set-cookie"]) == (401, None)
        assert text not in text_of(answer) or not text


def test_a_revoked_token_ends_the_visit(server: Server) -> None:
    visitor = browser(server, "read")
    [token] = server.queue.admin.tokens.list()
    server.queue.admin.tokens.revoke(token.id)
    assert visitor.get("/jobs").status == 303


def test_the_cookie_is_no_key_to_the_api_and_a_header_none_to_the_dashboard(server: Server) -> None:
    token = server.queue.admin.tokens.create("operator", roles=["admin"]).text
    assert server.anonymous.get("/v1/jobs", Cookie=f"holdfast_token={token}").status == 401
    assert server.anonymous.get("/dashboard/jobs", Authorization=f"Bearer {token}").status == 303


# --- forms of other sites ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "none"},
        {"Sec_Fetch_Site": "", "Origin": "http://evil.example"},
        {"Sec_Fetch_Site": "", "Origin": "null"},
        {"Sec_Fetch_Site": "", "Origin": ""},
    ],
)
def test_forms_of_other_sites_are_refused(server: Server, headers: dict[str, str]) -> None:
    job = server.queue.enqueue("email.send")
    visitor = browser(server, "admin")
    for view in ACTIONS:
        path = view.path.replace("{number}", str(job.job.number))
        assert visitor.post(path, {"lane": "default", "state": "paused"}, **headers).status == 403
    assert server.queue.get(job.id).state == "ready"
    assert server.queue.admin.audit_log()[0].action == "token.create"


def test_a_browser_that_sends_only_the_origin_may_send_forms(server: Server) -> None:
    job = server.queue.enqueue("email.send")
    visitor = browser(server, "admin")
    assert visitor.post(f"/jobs/{job.job.number}/cancel", Sec_Fetch_Site="").status == 303
    assert server.queue.get(job.id).state == "cancelled"


@pytest.mark.service_settings(tokens=False)
def test_without_tokens_pages_of_other_hosts_are_refused(server: Server) -> None:
    assert Browser(server.port).get("/jobs").status == 200
    assert Browser(server.port).get("/jobs", {"Host": "evil.example"}).status == 403
    assert Browser(server.port).post("/lanes/set", Sec_Fetch_Site="cross-site").status == 403


# --- headers -------------------------------------------------------------------------------------------------------


def test_every_answer_forbids_scripts_frames_and_content_of_other_origins(server: Server) -> None:
    fill(server.queue)
    visitor = browser(server, "admin")
    assert visitor.get("/jobs").headers["cache-control"] == "no-store"
    for view in VIEWS:
        answer = visit(visitor, view)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy, view
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    for name in ("script.js", "style.css", "icon.svg"):
        assert "immutable" in visitor.get(f"/static/{name}").headers["cache-control"]
    assert visitor.get("/static/../application.py").status == 404


def test_browsers_that_open_the_root_are_led_to_the_dashboard_and_programs_are_not(server: Server) -> None:
    answer = server.anonymous.get("/", Accept="text/html,*/*")
    assert (answer.status, answer.headers["location"]) == (307, "/dashboard/")
    assert server.anonymous.get("/").code == "not_found"


def test_without_its_packages_the_import_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = "holdfast.dashboard", "starlette"
    for name in [name for name in sys.modules if name.startswith(ours) or name.split(".")[0] == theirs]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, theirs, None)

    with pytest.raises(ModuleNotFoundError, match=r"\.\[server\]"):
        import_module(ours)
