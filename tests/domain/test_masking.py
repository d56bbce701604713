"""The password is masked in URLs and connection strings; everything else is shown."""

from __future__ import annotations

import pytest

from holdfast.domain.masking import mask_url


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://ada:s3cret@db/jobs", "postgresql://ada:***@db/jobs"),
        ("postgresql://:s3cret@db", "postgresql://:***@db"),
        ("postgresql//ada:s3cret@db/jobs", "postgresql//ada:***@db/jobs"),
        ("redis://ada:s3@cr/et?s#s3cret@db:6379/0", "redis://ada:***@db:6379/0"),
        ("postgresql://ada:my s3cret@db/jobs", "postgresql://ada:***@db/jobs"),
        ("postgresql://db/jobs?user=ada&password=s3cret&sslmode=require", None),
        (
            "cannot open 'postgresql://db/jobs?password=s3cret': no",
            "cannot open 'postgresql://db/jobs?password=***': no",
        ),
        ("host=db password=s3cret dbname=jobs", "host=db password=*** dbname=jobs"),
        ("host=db password='my \\' s3cret' dbname=jobs", "host=db password=*** dbname=jobs"),
        ("'host=db password=s3cret'", "'host=db password=***'"),
        ("PGPASSWORD=s3cret, SSLPASSWORD = s3cret", "PGPASSWORD=***, SSLPASSWORD = ***"),
    ],
)
def test_a_password_is_masked_wherever_it_stands(given: str, shown: str | None) -> None:
    expected = given.replace("s3cret", "***") if shown is None else shown

    assert mask_url(given) == expected
    assert mask_url(expected) == expected


@pytest.mark.parametrize(
    "harmless",
    [
        "jobs.db",
        "postgresql://db:5432/jobs",
        "postgresql://ada@db:5432/jobs",
        "tried postgresql://db:5432/jobs, then mailed ada@example.org",
        "no job 'email:ada@example.org'",
        "the server has no password supplied",
    ],
)
def test_what_holds_no_password_is_shown_as_it_is(harmless: str) -> None:
    assert mask_url(harmless) == harmless
