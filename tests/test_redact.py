"""What opens a door is hidden from every log, wherever it stands; the rest stays readable."""

import logging

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.balancer.redact import HIDDEN, RedactingFormatter, redact, redact_text
from libra.balancer.tokens import new_token

TOKEN = new_token("admin")[0]
JWT = jwt.encode({"sub": "someone"}, "k" * 32, algorithm="HS256")


@pytest.mark.parametrize(
    "secret",
    [TOKEN, TOKEN[:-9], JWT, JWT.rpartition(".")[0]],
    ids=["token", "part of a token", "signed", "unsigned"],
)
@given(before=st.text(max_size=8), after=st.sampled_from(["", " ", ",", "'", '"', "\n", ")"]))
def test_a_token_is_hidden_wherever_it_stands(secret: str, before: str, after: str) -> None:
    """Whole or cut short, between any other characters."""
    for text in (f"{before}{secret}{after}", f"{before}?token={secret}{after}"):
        assert secret[20:] not in redact_text(text)


@pytest.mark.parametrize(
    ("text", "secret", "left"),
    [
        ("postgresql://libra:hunter2@db:5432/libra", "hunter2", "@db:5432/libra"),
        ("https://:hunter2@host/x", "hunter2", "@host/x"),
        ("Authorization: Bearer abcdef123456", "abcdef123456", "Authorization: Bearer"),
        ("authorization: basic dXNlcjpwYXNz", "dXNlcjpwYXNz", "basic"),
        ("Cookie: a=1; libra_session=abc-DEF_1; b=2", "abc-DEF_1", "b=2"),
        ("GET /api?token=abc&x=1", "abc", "x=1"),
    ],
)
def test_other_secrets_are_hidden_and_the_rest_is_not(text: str, secret: str, left: str) -> None:
    """An operator still sees which address it was."""
    assert secret not in redact_text(text)
    assert left in redact_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "libra_auth_refused_total 3",
        "Took up 3 access tokens.",
        "http://localhost:8765/api/v1/jobs",
        "Job run@7:libra is in mode adapt",
    ],
)
def test_ordinary_lines_stay_as_they_are(text: str) -> None:
    """Names of metrics and addresses are no secrets."""
    assert redact_text(text) == text
    assert redact(None, "info", {"event": text, "job": "a", "seconds": 1.5}) == {
        "event": text,
        "job": "a",
        "seconds": 1.5,
    }


def test_fields_of_an_event_are_hidden_by_name_and_by_look() -> None:
    """In headers, in mappings, in lists and in exceptions; an unset secret still shows as unset."""
    event = {
        "event": f"refused {TOKEN}",
        "Authorization": "xyz",
        "password": "",
        "headers": [(b"authorization", b"xyz"), (b"host", b"a")],
        "inner": {"cookie": "xyz", "list": [TOKEN], "error": ValueError(TOKEN)},
        "raw": TOKEN.encode(),
        "exc_info": True,
    }
    cleaned = redact(None, "info", event)

    assert "xyz" not in repr(cleaned)
    assert TOKEN[10:] not in repr(cleaned)
    assert (cleaned["password"], cleaned["exc_info"]) == ("", True)
    assert cleaned["headers"] == [(b"authorization", HIDDEN), (b"host", "a")]


def test_a_traceback_is_cleaned_too(caplog: pytest.LogCaptureFixture) -> None:
    """The formatter cleans the whole of what it writes."""
    try:
        raise ValueError(f"bad {TOKEN}")
    except ValueError:
        logging.getLogger("t").exception("It failed with %s", TOKEN)
    line = RedactingFormatter("%(levelname)s %(message)s").format(caplog.records[-1])

    assert "ERROR It failed with" in line
    assert "ValueError" in line
    assert TOKEN[10:] not in line
