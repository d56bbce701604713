"""Decisions about tokens: what they grant."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.domain import access
from holdfast.domain.access import Grants, Role, StoredToken, Token
from holdfast.domain.errors import Forbidden, InvalidInput

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_admin_includes_the_other_roles() -> None:
    needed: tuple[Role, ...] = ("work",)
    access.check_role(Grants(("admin",)), needed)
    access.check_role(Grants(("read", "work")), needed)
    with pytest.raises(Forbidden, match="needs the role work or admin; the token has read"):
        access.check_role(Grants(("read",)), needed)


def test_a_token_of_one_tenant_acts_for_it_only() -> None:
    bound, free = Grants(("read",), tenant="acme"), Grants(("read",))

    assert (access.tenant_for(bound, None), access.tenant_for(bound, "acme")) == ("acme", "acme")
    assert (access.tenant_for(free, None), access.tenant_for(free, "acme")) == (None, "acme")
    with pytest.raises(Forbidden) as caught:
        access.tenant_for(bound, "other", "jobs[2].tenant")
    assert caught.value.field == "jobs[2].tenant"


def test_a_token_with_lanes_never_leaves_the_lane_to_the_catalog() -> None:
    assert access.check_lane(Grants(("produce",)), None, "lane") is None
    assert access.check_lane(Grants(("produce",), lanes=("mail",)), None, "lane") == "mail"
    assert access.check_lane(Grants(("produce",), lanes=("mail", "bulk")), "bulk", "lane") == "bulk"
    for lane in (None, "other"):
        with pytest.raises(Forbidden):
            access.check_lane(Grants(("produce",), lanes=("mail", "bulk")), lane, "lane")


def test_a_claim_takes_the_granted_names_by_default_and_no_others() -> None:
    assert access.scoped_names(None, None, "kinds") is None
    assert access.scoped_names(None, ("a", "b"), "kinds") == ("a", "b")
    assert access.scoped_names(["b"], ("a", "b"), "kinds") == ["b"]
    with pytest.raises(Forbidden) as caught:
        access.scoped_names(["b", "c"], ("a", "b"), "kinds")
    assert caught.value.field == "kinds[1]"


def test_a_ceiling_names_the_field_and_the_limit() -> None:
    grants = Grants(("produce", "work"), priority_max=5, payload_bytes_max=100, claim_max=10)

    access.check_job_ceilings(grants, 5, 100, "")
    access.check_claim_size(grants, 10)
    with pytest.raises(Forbidden) as caught:
        access.check_job_ceilings(grants, 6, 1, "jobs[1].")
    assert (caught.value.field, caught.value.limit) == ("jobs[1].priority", 5)
    with pytest.raises(Forbidden):
        access.check_job_ceilings(grants, 0, 101, "")
    with pytest.raises(Forbidden):
        access.check_claim_size(grants, 11)


def test_only_the_whole_secret_of_a_stored_token_is_genuine() -> None:
    text = "hf_" + "a" * 16 + "_" + "s" * 43
    parsed = access.parse_token(text)
    assert parsed == ("a" * 16, "s" * 43)
    stored = StoredToken(Token("a" * 16, "name", Grants(("read",)), NOW), access.hash_secret(parsed[1]))

    assert access.is_genuine(stored, parsed[1])
    assert not access.is_genuine(stored, "s" * 42 + "t")
    assert not access.is_genuine(None, parsed[1])


@pytest.mark.parametrize("text", ["", "hf_", "hf_aa_bb", "xx_" + "a" * 16 + "_" + "s" * 43, "hf_" + "a" * 16])
def test_other_text_is_not_a_token(text: str) -> None:
    assert access.parse_token(text) is None


def test_a_token_is_active_until_it_expires_or_is_revoked() -> None:
    end = NOW + timedelta(seconds=10)
    token = Token("id", "name", Grants(("read",)), NOW, expires_at=end)

    times = (NOW, end - timedelta(milliseconds=1), end)
    assert [token.state(now) for now in times] == ["active", "active", "expired"]
    assert Token("id", "name", Grants(("read",)), NOW, revoked_at=NOW).state(NOW) == "revoked"


def test_grants_survive_their_stored_form() -> None:
    for grants in (
        Grants(("produce",)),
        Grants(("work", "read"), "acme", ("mail",), ("a", "b"), -3, 1_000, 7),
    ):
        assert access.grants_from_json(grants.tenant, *access.grants_to_json(grants)) == grants


@pytest.mark.parametrize(
    ("roles", "options", "field"),
    [
        ((), {}, "roles"),
        (("reader",), {}, "roles[0]"),
        (("read",), {"lanes": []}, "lanes"),
        (("read",), {"tenant": ""}, "tenant"),
        (("read",), {"claim_max": 0}, "claim_max"),
        (("read",), {"lane": "mail"}, "lane"),
    ],
)
def test_invalid_grants_are_refused_by_name(roles: tuple[str, ...], options: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        access.check_grants(roles, options)  # type: ignore[arg-type]
    assert caught.value.field == field
