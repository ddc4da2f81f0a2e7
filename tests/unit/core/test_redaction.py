"""Secrets are removed from text and settings, and the rest stays."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.redaction import LEFT_OUT, is_secret_name, scrub, scrub_settings

pytestmark = pytest.mark.unit

SECRET = "hunter2-Zq8x"
KEY = f"-----BEGIN EC PRIVATE KEY-----\nMHc{SECRET}\nabc==\n-----END EC PRIVATE KEY-----"
TOKEN = ".".join(
    base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (b'{"alg":"RS256"}', b'{"a":1}', b"sig")
)

FORMS = (
    "password={}",
    "ssl.key.password = {}",
    "'sasl.password': '{}'",
    '"sasl_password": "{}"',
    "client_secret:{}",
    "sasl.oauthbearer.client.secret={}, x",
    'sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="{}";',
    "sasl.jaas.config=anything at all {}",
    "https://user:{}@keys.example/jwks.json",
    "https://{}@keys.example/jwks.json",
    "Authorization: Basic {}",
    "authorization: bearer {}",
    "stored_key={}",
    "token={}",
    f"before {KEY} after",
    KEY[:60],
)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_secret_is_left_out(form: str) -> None:
    cleaned = scrub(f"one {form.format(SECRET)}\ntwo")
    assert SECRET not in cleaned
    assert LEFT_OUT in cleaned
    assert cleaned.startswith("one ")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("word", ["x", "token", "a.", "-eyJaaaaa", "a://", "pass_word ", "jaas.config ", "basic "])
def test_no_text_takes_long(word: str) -> None:
    """Clients choose words of log lines, and the server is still while a pattern is matched."""
    assert scrub(word * 4000)


def test_a_signed_token_is_left_out_wherever_it_is() -> None:
    assert TOKEN not in scrub(f"the client said {TOKEN} and left")


@given(st.sampled_from(FORMS), st.text(st.characters(categories=["L", "N"]), min_size=6, max_size=40))
def test_a_secret_in_any_known_form_never_survives(form: str, secret: str) -> None:
    assert f"Q{secret}Z" not in scrub(form.format(f"Q{secret}Z"))


@given(st.text(min_size=4).filter(lambda text: text not in LEFT_OUT), st.text(), st.text())
def test_a_known_secret_never_survives(secret: str, before: str, after: str) -> None:
    pieces = scrub(f"{before}{secret}{after}", [secret]).split(LEFT_OUT)
    assert len(pieces) > 1
    assert not any(secret in piece for piece in pieces)


def test_a_short_secret_is_left_out_only_as_a_word() -> None:
    assert scrub("a b abc", ["a"]) == f"{LEFT_OUT} b abc"


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-15 08:00:00,123 WARNING fencepost.server: 127.0.0.1:50312 cannot be reached: trying again",
        'kafka_consumergroup_lag{consumergroup="readers",topic="orders",partition="0"} 2.0',
        "# HELP fencepost_takeovers_total Owners that were replaced.",
        'File "server/security/tokens.py", line 12, in check',
        "max_connections: 20000",
    ],
)
def test_other_lines_stay_as_they_are(line: str) -> None:
    assert scrub(line) == line


def test_settings_keep_their_names_and_paths_but_no_secret() -> None:
    settings = {
        "sync": "always",
        "oauth_jwks": f"https://user:{SECRET}@keys.example/jwks.json",
        "listeners": [{"name": "tls", "key": "/etc/fencepost/key.pem", "key_password": SECRET}],
        "password_file": "/run/secret",
        "secret": None,
        "max_groups": 8,
    }
    cleaned = scrub_settings(settings)
    assert SECRET not in str(cleaned)
    assert cleaned["listeners"] == [{"name": "tls", "key": "/etc/fencepost/key.pem", "key_password": LEFT_OUT}]
    assert (cleaned["sync"], cleaned["max_groups"], cleaned["secret"]) == ("always", 8, None)
    assert cleaned["password_file"] == "/run/secret"
    assert cleaned["oauth_jwks"] == f"https://{LEFT_OUT}@keys.example/jwks.json"


@pytest.mark.parametrize(("name", "secret"), [("sasl.password", True), ("ssl.key.location", False), ("listen", False)])
def test_names_tell_what_is_secret(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret
