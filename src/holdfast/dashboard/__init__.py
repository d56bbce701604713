"""The dashboard: pages for operators, in `holdfast serve`, in `holdfast gateway`, or in any ASGI application."""

try:
    from holdfast.dashboard.application import Authorize, Dashboard, app
    from holdfast.dashboard.visits import Viewer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "the dashboard needs packages that are not installed; install the extra `server`, in a clone with"
        f" `pip install '.[server]'` ({error})",
        name=error.name,
    ) from error

__all__ = ["Authorize", "Dashboard", "Viewer", "app"]
