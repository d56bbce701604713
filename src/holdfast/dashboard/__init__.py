"""The dashboard: pages for operators, in `holdfast serve`, in `holdfast gateway`, or in any ASGI application."""

from holdfast.dashboard.application import Authorize, Dashboard, app
from holdfast.dashboard.visits import Viewer

__all__ = ["Authorize", "Dashboard", "Viewer", "app"]
