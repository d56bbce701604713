"""Webhooks: URLs, addresses, secrets, signatures, matching, tries and endpoints, as tables."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.domain import limits, strict_json, webhook_signatures, webhook_urls, webhooks
from holdfast.domain.errors import InvalidInput
from holdfast.domain.events import Event
from holdfast.domain.webhook_signatures import StoredSecret
from holdfast.domain.webhooks import Answer, Matcher, StoredWebhook, Webhook

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


def webhook(**changes: Any) -> Webhook:
    values: dict[str, Any] = {
        "id": "wh_a",
        "url": "https://example.org/",
        "tenant": None,
        "types": ("job.done",),
        "kinds": None,
        "lanes": None,
        "tags": {},
        "include_results": False,
        "concurrency": 8,
        "per_job": False,
        "state": "active",
        "reason": None,
        "created_at": NOW,
        "since": NOW,
    }
    return Webhook(**{**values, **changes})


def event(**changes: Any) -> Event:
    values: dict[str, Any] = {
        "cursor": "e1-7",
        "name": "done",
        "at": NOW,
        "job_id": "job-1",
        "number": 1,
        "kind": "mail",
        "lane": "default",
        "tenant": "acme",
        "tags": {"a": "1", "b": "2"},
        "details": {"state": "done", "attempt": 1, "epoch": 1, "worker": "w"},
    }
    return Event(**{**values, **changes})


class TestUrls:
    @pytest.mark.parametrize(
        "url",
        [
            "https://example.org",
            "https://example.org/hook?key=1",
            "https://EXAMPLE.org:8443/",
            "https://93.184.216.34/",
            "http://127.0.0.1:9999/hook",
            "http://[::1]:80/",
            "http://localhost:8000",
            "http://receiver:8000/hook",
        ],
    )
    def test_these_are_accepted(self, url: str) -> None:
        assert webhook_urls.check_url(url, "url") == url

    @pytest.mark.parametrize(
        ("url", "problem"),
        [
            ("ftp://example.org/", "https"),
            ("https:///path", "host"),
            ("example.org", "https"),
            ("https://user:pw@example.org/", "user name"),
            ("https://@example.org/", "user name"),
            ("https://example.org/#part", "fragment"),
            ("http://example.org/", "must use https"),
            ("http://93.184.216.34/", "must use https"),
            ("https://example.org:22/", "port 22"),
            ("https://example.org:0/", "port"),
            ("https://example.org:99999/", "not a URL"),
            ("https://2130706433/", "usual form"),
            ("https://0x7f.1/", "usual form"),
            ("https://127.1/", "usual form"),
            ("https://0177.0.0.1/", "usual form"),
            ("https://[fe80::1%eth0]/", "interface"),
            ("https://exa mple.org/", "percent-encoded"),
            ("https://exämple.org/", "percent-encoded"),
            ("https://example.org\\@127.0.0.1/", "percent-encoded"),
            ("https://example.org/" + "a" * limits.URL_CHARS_MAX, "limit"),
            (None, "string"),
        ],
    )
    def test_these_are_refused_with_the_field(self, url: object, problem: str) -> None:
        with pytest.raises(InvalidInput, match=problem) as caught:
            webhook_urls.check_url(url, "url")
        assert caught.value.field == "url"

    def test_the_origin_has_no_default_port(self) -> None:
        assert webhook_urls.parse_url("https://Example.org:443/a?b=c", "url").origin == "https://example.org"
        assert webhook_urls.parse_url("http://[::1]:81/", "url").origin == "http://[::1]:81"


class TestAddresses:
    @pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34", "8.8.8.8"])
    def test_public(self, address: str) -> None:
        assert webhook_urls.is_public(ipaddress.ip_address(address))
        assert webhook_urls.refusal("https", [address], ()) is None
        assert "http is used" in str(webhook_urls.refusal("http", [address], ()))

    @pytest.mark.parametrize(
        "address",
        [
            "127.0.0.1",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.2.1",
            "198.18.0.1",
            "::1",
            "::",
            "::127.0.0.1",
            "fe80::1",
            "fc00::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2001:0:7f00:1::",
        ],
    )
    def test_not_public_in_any_form(self, address: str) -> None:
        assert not webhook_urls.is_public(ipaddress.ip_address(address))
        assert "not a public address" in str(webhook_urls.refusal("https", ["8.8.8.8", address], ()))

    def test_only_the_networks_of_the_list_are_allowed(self) -> None:
        allowed = webhook_urls.parse_networks("127.0.0.0/8, 10.1.2.3", "HOLDFAST_WEBHOOK_ALLOW")

        assert webhook_urls.refusal("http", ["127.0.0.1", "10.1.2.3"], allowed) is None
        assert webhook_urls.refusal("http", ["10.1.2.4"], allowed) is not None
        assert webhook_urls.refusal("http", ["::1"], allowed) is not None
        assert webhook_urls.refusal("https", [], allowed) == "the host has no address"
        with pytest.raises(InvalidInput, match="not a network"):
            webhook_urls.parse_networks("10.0.0.1/8", "HOLDFAST_WEBHOOK_ALLOW")


class TestSignatures:
    def test_the_example_of_the_specification(self) -> None:
        body = b'{"test": 2432232314}'
        header = webhook_signatures.sign([SECRET], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)

        assert header == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

    def test_a_rotated_secret_signs_until_the_overlap_has_passed(self) -> None:
        new = webhook_signatures.secret_of(b"n" * 32)
        secrets = webhook_signatures.rotated((StoredSecret(SECRET),), new, NOW_MS, 1_000)
        both = webhook_signatures.sign(webhook_signatures.valid_secrets(secrets, NOW_MS + 999), "id", 1, b"x")

        assert webhook_signatures.verify(SECRET, "id", 1, b"x", both)
        assert webhook_signatures.verify(new, "id", 1, b"x", both)
        assert not webhook_signatures.verify(new, "id", 2, b"x", both)
        assert webhook_signatures.valid_secrets(secrets, NOW_MS + 1_000) == [new]
        assert webhook_signatures.rotated(secrets, SECRET, NOW_MS, 0) == (StoredSecret(SECRET),)
        assert webhook_signatures.rotated(secrets, new, NOW_MS + 500, 1_000) == secrets

    @pytest.mark.parametrize(
        "secret", ["", "abc", "whsec_", "whsec_!!!", webhook_signatures.secret_of(b"x" * 23), 7, "whsec_" + "A" * 88]
    )
    def test_a_bad_secret_is_refused_and_not_shown(self, secret: object) -> None:
        with pytest.raises(InvalidInput) as caught:
            webhook_signatures.check_secret(secret, "secret")
        assert len(str(secret)) < 8 or str(secret) not in str(caught.value)


class TestMatching:
    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({}, True),
            ({"types": ("job.failed",)}, False),
            ({"tenant": "acme"}, True),
            ({"tenant": "other"}, False),
            ({"kinds": ("mail",)}, True),
            ({"kinds": ("sms",)}, False),
            ({"lanes": ("default",)}, True),
            ({"lanes": ("slow",)}, False),
            ({"tags": {"a": "1"}}, True),
            ({"tags": {"a": "1", "c": "3"}}, False),
            ({"since": NOW + timedelta(milliseconds=1)}, False),
            ({"state": "disabled"}, False),
            ({"per_job": True}, False),
        ],
    )
    def test_every_filter_counts(self, changes: dict[str, Any], expected: bool) -> None:
        assert bool(Matcher([webhook(**changes)]).matching(event())) is expected

    def test_deliveries_are_not_events(self) -> None:
        assert Matcher([webhook()]).matching(event(lane=webhooks.LANE)) == []

    def test_every_event_name_has_a_type(self) -> None:
        assert webhooks.DEFAULT_TYPES == ("job.done", "job.failed", "job.cancelled", "job.retired")
        assert "job.claimed" in webhooks.TYPES


class TestBodies:
    def test_it_is_thin_and_ordered(self) -> None:
        body = webhooks.body_of("job.done", NOW, webhooks.job_data(event(tags={})))

        assert body == (
            '{"type":"job.done","timestamp":"2030-01-01T00:00:00.000Z","data":{"job_id":"job-1","number":1,'
            '"kind":"mail","lane":"default","tenant":"acme","tags":{},"state":"done","attempt":1,"epoch":1}}'
        )

    def test_a_large_result_is_left_out(self) -> None:
        small, large = '{"a":1}', strict_json.compact("x" * limits.WEBHOOK_RESULT_BYTES_MAX)

        assert webhooks.with_result({}, small) == {"result": {"a": 1}}
        assert webhooks.with_result({}, large) == {"result_omitted": True}

    def test_an_id_has_no_dots(self) -> None:
        assert "." not in webhooks.delivery_id(12, "wh_abc")


class TestTries:
    def test_ten_tries_take_about_75_hours(self) -> None:
        assert webhooks.TRIES == 10
        for fraction in (0.0, 1.0):
            total = sum(webhooks.retry_seconds(tries, fraction) for tries in range(1, webhooks.TRIES))
            assert 71 < total / 3600 < 80

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            (Answer(200), "success"),
            (Answer(204), "success"),
            (Answer(301), "failure"),
            (Answer(400), "failure"),
            (Answer(410), "gone"),
            (Answer(429), "closing"),
            (Answer(500), "failure"),
            (Answer(502), "closing"),
            (Answer(503), "closing"),
            (Answer(504), "closing"),
            (Answer(None, "timeout"), "closing"),
            (Answer(None, "10.0.0.1 is not public", refused=True), "failure"),
        ],
    )
    def test_what_answers_mean(self, answer: Answer, expected: str) -> None:
        assert webhooks.verdict(answer) == expected

    def test_an_answer_without_text_is_described_by_its_status(self) -> None:
        described = [one.describe() for one in (Answer(410), Answer(500, "oops"), Answer(None, "timeout"))]
        assert described == ["HTTP 410", "HTTP 500: oops", "timeout"]

    @pytest.mark.parametrize(
        ("header", "seconds"),
        [
            (None, None),
            ("7", 7.0),
            ("999999", 86_400.0),
            ("9" * 40, 86_400.0),
            ("9" * 41, None),
            ("-1", None),
            ("soon", None),
            ("Tue, 01 Jan", None),
            ("Tue, 01 Jan 2030 00:01:30 GMT", 90.0),
            ("Tuesday, 01-Jan-30 00:01:30 GMT", 90.0),
            ("Tue Jan  1 00:01:30 2030", 90.0),
            ("Tue, 01 Jan 2030 01:01:30 +0100", 90.0),
            ("Mon, 31 Dec 2029 23:00:00 GMT", 0.0),
            ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400.0),
            ("Tue, 01 Jan 99999999999 00:00:00 GMT", None),
            ("Tue, 32 Jan 2030 00:00:00 GMT", None),
        ],
    )
    def test_retry_after(self, header: str | None, seconds: float | None) -> None:
        assert webhooks.retry_after_seconds(header, NOW_MS) == seconds


class TestEndpoints:
    def closed(self, **changes: Any) -> StoredWebhook:
        change = webhooks.after_answer(StoredWebhook(webhook(), ()), Answer(503, **changes), NOW_MS)
        assert change is not None
        until = NOW + timedelta(milliseconds=(change.closed_until_ms or 0) - NOW_MS)
        one = webhook(closed_until=until, failing_since=NOW)
        return StoredWebhook(one, (), change.closings)

    def test_one_that_is_overloaded_is_closed_as_long_as_it_asks(self) -> None:
        assert self.closed().webhook.closed_until == NOW + timedelta(seconds=5)
        assert self.closed(retry_after_seconds=90.0).webhook.closed_until == NOW + timedelta(seconds=90)
        assert [webhooks.closed_seconds(count, Answer(503)) for count in (0, 1, 2, 30)] == [5, 10, 20, 3_600]

    def test_one_try_at_a_time_follows(self) -> None:
        stored = self.closed()
        later = NOW_MS + 5_000

        assert webhooks.admit(stored, NOW_MS).action == "wait"
        assert webhooks.admit(stored, later).action == "probe"
        probing = stored._replace(probe_until_ms=webhooks.probe_until_ms(later))
        assert webhooks.admit(probing, later).action == "wait"
        assert webhooks.admit(None, later).action == "drop"
        assert webhooks.admit(StoredWebhook(webhook(state="disabled"), ()), later).action == "drop"

    def test_a_success_opens_it_and_a_failed_try_closes_it_for_longer(self) -> None:
        stored = self.closed()._replace(probe_until_ms=NOW_MS + 10_000)
        opened = webhooks.after_answer(stored, Answer(200), NOW_MS + 6_000)
        again = webhooks.after_answer(stored, Answer(503), NOW_MS + 6_000)

        assert opened is not None
        assert (opened.closed_until_ms, opened.closings, opened.failing_since_ms) == (None, 0, None)
        assert again is not None
        assert (again.closed_until_ms, again.closings) == (NOW_MS + 16_000, 2)

    def test_answers_of_deliveries_on_their_way_do_not_extend_the_time(self) -> None:
        change = webhooks.after_answer(self.closed(), Answer(503), NOW_MS + 1_000)

        assert change is not None
        assert (change.closed_until_ms, change.closings) == (NOW_MS + 5_000, 1)

    def test_a_repeated_success_writes_nothing(self) -> None:
        stored = StoredWebhook(webhook(last_success_at=NOW), ())

        assert webhooks.after_answer(stored, Answer(200), NOW_MS + 1_000) is None
        assert webhooks.after_answer(stored, Answer(200), NOW_MS + 61_000) is not None

    def test_five_days_without_success_or_410_disable_it(self) -> None:
        failing = StoredWebhook(webhook(failing_since=NOW - timedelta(days=5)), ())
        younger = StoredWebhook(webhook(failing_since=NOW - timedelta(days=4)), ())
        gone = webhooks.after_answer(StoredWebhook(webhook(), ()), Answer(410, "bye"), NOW_MS)
        silent = webhooks.after_answer(failing, Answer(500, "oops"), NOW_MS)
        patient = webhooks.after_answer(younger, Answer(500), NOW_MS)

        assert gone is not None
        assert (gone.disabled, gone.last_answer) == ("the receiver answered 410 Gone", "HTTP 410: bye")
        assert silent is not None
        assert silent.disabled == "no delivery has succeeded for five days"
        assert patient is not None
        assert patient.disabled is None


class TestPlaces:
    def test_processes_together_get_as_many_as_the_concurrency_and_each_may_ask_again(self) -> None:
        stored = StoredWebhook(webhook(concurrency=3), ())
        stored = webhooks.with_places(stored, "a", 2, NOW_MS)
        stored = webhooks.with_places(stored, "b", 2, NOW_MS)
        stored = webhooks.with_places(stored, "c", 2, NOW_MS)

        assert [webhooks.places_of(stored, name) for name in "abc"] == [2, 1, 0]
        fewer = webhooks.with_places(stored, "a", 1, NOW_MS)
        assert webhooks.places_of(fewer, "a") == 1
        assert webhooks.places_of(webhooks.with_places(fewer, "b", 9, NOW_MS), "b") == 2
        assert webhooks.places_of(webhooks.with_places(stored, "a", 0, NOW_MS), "a") == 0

    def test_places_that_are_not_renewed_are_free_when_their_time_has_passed(self) -> None:
        stored = webhooks.with_places(StoredWebhook(webhook(concurrency=1), ()), "killed", 1, NOW_MS)
        later = NOW_MS + webhooks.PLACES_MS

        assert webhooks.with_places(stored, "next", 1, later - 1).places == stored.places
        assert webhooks.with_places(stored, "next", 1, later).places == (
            webhooks.Places("next", 1, later + webhooks.PLACES_MS),
        )
        assert webhooks.places_from_json(webhooks.places_to_json(stored.places)) == stored.places
