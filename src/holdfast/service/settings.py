"""The settings of the service: timeouts, sizes and counts. Each protects other callers from one."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Limits of one server process; times are seconds."""

    tokens: bool = True
    """Whether requests need a token. Without tokens every caller may do everything."""
    header_seconds: float = 10.0
    """How long the headers of a request may take, from its first byte or from the start of the connection."""
    header_bytes_max: int = 32 << 10
    body_seconds: float = 30.0
    """How long a body may take, plus one second for each `body_bytes_per_second_min` bytes received."""
    body_bytes_per_second_min: int = 1 << 10
    send_seconds: float = 30.0
    """How long a client may leave a full send buffer unread."""
    keep_alive_seconds: int = 75
    connections_max: int = 2_000
    wait_seconds_max: float = 60.0
    """The longest long poll."""
    streams_per_token_max: int = 100
    ping_seconds: float = 15.0
    """How often an idle stream gets a comment."""
    shutdown_seconds: int = 10
    """How long requests may take to finish after SIGTERM."""
