"""The settings of a gateway: where the model server is, how its work is ordered, and what callers may do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from holdfast.domain import errors, limits, validation
from holdfast.gateway.http_client import parse_url

UpstreamType: TypeAlias = Literal["auto", "ollama", "openai"]
"""What the model server speaks; `auto` asks it."""

OLLAMA_CONCURRENCY: Final = 1
OPENAI_CONCURRENCY: Final = 64
REMOTE_CONCURRENCY: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The settings of one gateway process; times are seconds."""

    upstream: str = "http://127.0.0.1:11434"
    """The URL of the model server."""
    upstream_type: UpstreamType = "auto"
    upstream_key: str | None = field(default=None, repr=False)
    """A key that the model server asks for; it replaces that of the caller, and is never stored."""
    fallbacks: tuple[str, ...] = ()
    """The URLs of other model servers, for requests that the first one does not take."""
    fallback_key: str | None = field(default=None, repr=False)
    """A key that they ask for."""
    concurrency: int | None = None
    """How many requests the model server gets at once; by default 1 for Ollama and 64 for others."""
    models: int = 1
    """How many models fit into the memory of the model server at once."""
    residence: float = 300.0
    """For how long the loaded model is preferred while requests for others wait."""
    num_ctx: Mapping[str, int] = field(default_factory=dict)
    """The context length to which requests for a model are pinned, by name."""
    resident: tuple[str, ...] = ()
    """Models that always stay loaded: requests for embeddings are passed to them at once."""
    keep_alive: str | None = None
    """For how long the model server keeps a loaded model, in its own notation; None leaves it to the server."""
    grace: float = 15.0
    """For how long the job of a caller who left is kept."""
    hold_headers: float = 25.0
    """For how long the status of a stream is held back until the model server answers."""
    keep_alive_every: float = 15.0
    """How often a stream that waits gets a keep-alive, after its headers."""
    queue_max: int = 5_000
    """How many requests may wait in all."""
    queue_max_per_tenant: int = 1_000
    """How many requests of one tenant may wait."""
    max_attempts: int = 20
    """How often a request is sent to a model server that cannot be reached or is overloaded."""
    backoff: float = 0.5
    """The pause after the first failed attempt; each further one is twice as long, up to 30 seconds."""
    timeout: float = 3_600.0
    """How long one attempt may take."""
    retention: float | None = 86_400.0
    """For how long finished jobs are kept; None for always."""
    content_retention: Mapping[str, float] = field(default_factory=dict)
    """For how long requests and answers of a tenant's finished jobs are kept; `*` stands for all other tenants."""

    def __post_init__(self) -> None:
        """Raise `InvalidInput` if a value is invalid."""
        parse_url(self.upstream)
        for url in self.fallbacks:
            parse_url(url, "fallback")
        validation.one_of(self.upstream_type, "upstream_type", ("auto", "ollama", "openai"))
        if self.concurrency is not None:
            validation.integer(self.concurrency, "concurrency", 1, limits.CONCURRENCY_MAX)
        validation.integer(self.models, "models", 1, limits.AFFINITIES_MAX)
        for model, size in self.num_ctx.items():
            validation.integer(size, f"num_ctx[{model}]", 1, 1 << 30)
        for name in ("residence", "grace", "hold_headers", "keep_alive_every", "backoff", "timeout"):
            validation.duration_ms(getattr(self, name), name)
        if self.keep_alive_every <= 0:
            raise errors.InvalidInput("keep_alive_every", "must be greater than 0")
        for name in ("queue_max", "queue_max_per_tenant"):
            validation.integer(getattr(self, name), name, 1, 1_000_000)
        validation.integer(self.max_attempts, "max_attempts", 1, limits.MAX_ATTEMPTS_MAX)
        if self.retention is not None:
            validation.duration_ms(self.retention, "retention")
        for tenant, seconds in self.content_retention.items():
            validation.duration_ms(seconds, f"content_retention[{tenant}]")
