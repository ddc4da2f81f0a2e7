"""The subject of a certificate as text. `tests/compat/test_tls_clients.py` compares it with Java's."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from fencepost.core.security.certificate_name import PrincipalRules, subject_of
from fencepost.errors import ConfigError, Malformed
from tests.support.certificates import make

pytestmark = pytest.mark.unit

SUBJECTS = {
    "/CN=alice": "CN=alice",
    "/C=DE/ST=Bavaria/L=Munich/O=Example, Inc./OU=A\\+B/CN=Bob": (
        r"CN=Bob,OU=A\+B,O=Example\, Inc.,L=Munich,ST=Bavaria,C=DE"
    ),
    "/DC=org/DC=example/UID=u1/CN=müller": "CN=müller,UID=u1,DC=example,DC=org",
    "/CN= spaces /O=#hash": r"O=\#hash,CN=\ spaces\ ",
    "/CN=a/emailAddress=a@example.org": "1.2.840.113549.1.9.1=#160d61406578616d706c652e6f7267,CN=a",
    '/CN=semi;<x>="q"/serialNumber=5': r"2.5.4.5=#130135,CN=semi\;\<x\>\=\"q\"",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


def test_subjects_are_written_as_kafka_writes_them(folder: Path) -> None:
    certificates = make(folder)
    written = {}
    for number, subject in enumerate(SUBJECTS):
        pem = certificates.issue(f"s{number}", subject=subject).certificate.read_text()
        written[subject] = subject_of(ssl.PEM_cert_to_DER_cert(pem))
    assert written == SUBJECTS


def test_a_part_with_several_attributes_is_joined_by_plus() -> None:
    country = bytes.fromhex("3009060355040613024445")
    name = bytes.fromhex("300806035504030c0161")
    both = _tagged(0x31, name + country)
    assert subject_of(_certificate(both)) == "CN=a+C=DE"


def test_an_empty_subject_is_empty() -> None:
    assert subject_of(_certificate(b"")) == ""


@pytest.mark.parametrize("text", ["", "30", "300501", "3000", "020100", "3003300100", "3084ffffffff"])
def test_other_bytes_are_refused(text: str) -> None:
    with pytest.raises(Malformed):
        subject_of(bytes.fromhex(text))


def _tagged(tag: int, content: bytes) -> bytes:
    return bytes([tag, len(content)]) + content


def _certificate(parts: bytes) -> bytes:
    fields = [_tagged(0x02, b"\x01"), _tagged(0x30, b""), _tagged(0x30, b""), _tagged(0x30, b""), _tagged(0x30, parts)]
    return _tagged(0x30, _tagged(0x30, b"".join(fields)))


RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U,DEFAULT"
)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "Duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=xyz,dc=example", "DUKE"),
        ("OU=nobody", "OU=nobody"),
    ],
)
def test_the_first_rule_that_matches_gives_the_name(subject: str, name: str) -> None:
    assert PrincipalRules(RULES).name(subject) == name


def test_without_rules_the_subject_is_the_name() -> None:
    assert PrincipalRules("DEFAULT").name("CN=a,O=b") == "CN=a,O=b"
    assert PrincipalRules("").name("CN=a,O=b") == "CN=a,O=b"


def test_a_subject_that_no_rule_matches_has_no_name() -> None:
    rules = PrincipalRules("RULE:^CN=alice$/a/")
    assert rules.name("CN=alice") == "a"
    assert rules.name("CN=alice,O=b") is None  # the whole subject must match


def test_a_slash_in_a_pattern_is_escaped() -> None:
    assert PrincipalRules(r"RULE:^CN=(.*?)\/x$/$1$2/").name("CN=a/x") == "a$2"


@pytest.mark.parametrize("text", ["RULE:^CN=(.*)$/$1", "RULE:a/b/X", "SOMETHING", "RULE:(/a/", "DEFAULT DEFAULT"])
def test_a_wrong_rule_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="rule"):
        PrincipalRules(text)
