"""All candidates that can be measured here."""

from __future__ import annotations

from bench import ceilings, ours, peers, plainjob
from bench.candidates import Candidate


def everyone() -> list[Candidate]:
    """Return Holdfast, its peers that are installed, and the bare loop."""
    return [*ours.candidates(), *peers.candidates(), *plainjob.candidates(), *ceilings.candidates()]
