"""The table of all pages and actions."""

from typing import Final

from holdfast.dashboard import actions, flow, job, jobs, overview, people, sign_in, system
from holdfast.dashboard.visits import View

PAGES: Final = (
    View("GET", "/", overview.show, "list_jobs"),
    View("GET", "/jobs", jobs.show, "list_jobs"),
    View("GET", "/jobs/newer", jobs.newer, "list_jobs"),
    View("GET", "/jobs/find", jobs.find, "list_jobs"),
    View("GET", "/jobs/{number}", job.show, "list_jobs"),
    View("GET", "/jobs/{number}/output", job.output, "list_jobs"),
    View("GET", "/failures", overview.failures, "list_failures"),
    View("GET", "/flow", flow.show, "list_lanes"),
    View("GET", "/workers", people.workers, "list_workers"),
    View("GET", "/sessions", people.sessions, "list_sessions"),
    View("GET", "/sessions/one", people.session, "list_sessions"),
    View("GET", "/webhooks", people.webhooks, "list_webhooks"),
    View("GET", "/webhooks/one", people.webhook, "list_webhooks"),
    View("GET", "/system", system.show, "backlog"),
    View("GET", "/live", system.live, "events"),
)
"""What readers may see."""

ACTIONS: Final = (
    View("POST", "/jobs/{number}/cancel", actions.cancel, "cancel_job"),
    View("POST", "/jobs/{number}/cancel-by-force", actions.cancel_by_force, "requeue_job"),
    View("POST", "/jobs/{number}/requeue", actions.requeue, "requeue_job"),
    View("POST", "/jobs/{number}/priority", actions.reprioritize, "reprioritize_job"),
    View("POST", "/jobs/preview", jobs.preview, "requeue_jobs"),
    View("POST", "/jobs/apply", jobs.apply, "requeue_jobs"),
    View("POST", "/groups/cancel", actions.cancel_group, "cancel_group"),
    View("POST", "/lanes/set", actions.set_lane, "set_lane"),
    View("POST", "/workers/drain", actions.drain_worker, "drain_worker"),
    View("POST", "/workers/stop", actions.stop_worker, "stop_worker"),
    View("POST", "/limits/remove", actions.remove_limit, "remove_limit"),
    View("POST", "/schedules/pause", actions.pause_schedule, "pause_schedule"),
    View("POST", "/schedules/resume", actions.resume_schedule, "resume_schedule"),
    View("POST", "/schedules/run", actions.run_schedule, "run_schedule"),
    View("POST", "/sessions/cancel", actions.cancel_session, "cancel_session"),
    View("POST", "/webhooks/enable", actions.enable_webhook, "enable_webhook"),
    View("POST", "/webhooks/test", actions.test_webhook, "test_webhook"),
    View("POST", "/webhooks/replay", actions.replay_webhook, "replay_webhook"),
    View("POST", "/tokens/revoke", actions.revoke_token, "revoke_token"),
)
"""What changes something: the roles and scopes are those of the same operation of the HTTP service."""

PUBLIC: Final = (
    View("GET", "/sign-in", sign_in.show, None),
    View("POST", "/sign-in", sign_in.enter, None),
    View("POST", "/sign-out", sign_in.leave, None),
)

VIEWS: Final = (*PAGES, *ACTIONS, *PUBLIC)
