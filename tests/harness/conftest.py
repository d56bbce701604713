from __future__ import annotations

from tests.postgres.conftest import server

__all__ = ["server"]
