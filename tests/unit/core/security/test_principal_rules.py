"""Kafka's mapping rules, with the cases of its documentation."""

from __future__ import annotations

import pytest

from fencepost.core.security.certificate_name import PrincipalRules
from fencepost.errors import ConfigError

pytestmark = pytest.mark.unit

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
