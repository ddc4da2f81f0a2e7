"""Wrong credentials, or an untrusted certificate: records for that broker fail at once, with the reason."""

from __future__ import annotations

import ssl

import pytest

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.handshake import keeps_us_out, tls_failed
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.read.fetcher import Fetcher, FetchOptions
from fencepost.errors import ErrorCode, FencepostError, SendFailed, ServerError, TlsRefused, Unreachable
from fencepost.types import Offset, TopicPartition
from tests.support.scripted import Api, Fate
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit

REFUSALS = [
    ServerError(ErrorCode.SASL_AUTHENTICATION_FAILED, "wrong password"),
    ServerError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "no PLAIN here"),
    TlsRefused("the certificate is not trusted"),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda error: error.code.name)
def test_records_fail_when_nobody_lets_us_in_and_the_next_is_tried_anew(refusal: FencepostError) -> None:
    on = cluster(t=1)
    on.keeps_out[0] = refusal
    producer = SteppedProducer(on, delivery_timeout=1000.0)
    waiting, placed = producer.send("t", b"1"), producer.send("t", b"2", partition=0)
    producer.settle()
    assert on.clock.monotonic() < 10
    for ticket in (waiting, placed):
        error = ticket.exception()
        assert isinstance(error, SendFailed)
        assert (error.persisted, error.code) == ("no", refusal.code)
        assert str(refusal) in str(error)
        assert error.__cause__ is not None
    on.keeps_out.clear()
    later = producer.send("t", b"3", partition=0)
    producer.settle()
    assert later.result().offset == 0


def test_a_record_whose_answer_was_lost_before_we_were_kept_out_is_in_doubt() -> None:
    on = cluster(t=1)
    producer = SteppedProducer(on, delivery_timeout=1000.0)
    producer.send("t", b"first", partition=0)
    producer.settle()
    on.next(Api.PRODUCE, Fate.CUT)
    on.keeps_out[0] = REFUSALS[0]
    ticket = producer.send("t", b"in doubt", partition=0)
    producer.settle()
    error = ticket.exception()
    assert isinstance(error, SendFailed)
    assert error.persisted == "unknown"
    on.keeps_out.clear()
    later = producer.send("t", b"after", partition=0)
    producer.settle()
    assert later.result().offset == 2
    assert on.values("t", 0) == [b"first", b"in doubt", b"after"]


def test_one_broker_of_two_that_keeps_us_out_fails_its_own_records_only() -> None:
    """PROD-6."""
    on = cluster(2, t=2)
    theirs = on.logs["t"][1].leader
    assert theirs != on.logs["t"][0].leader
    on.keeps_out[theirs] = REFUSALS[0]
    producer = SteppedProducer(on, delivery_timeout=1000.0)
    tickets = [producer.send("t", b"x", partition=partition) for partition in range(2)]
    producer.settle()
    assert tickets[0].result().offset == 0
    error = tickets[1].exception()
    assert isinstance(error, SendFailed)
    assert error.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_broker_that_rejects_the_login_is_harmless_while_another_may_accept_it() -> None:
    on = cluster(2, t=1)
    leader = on.logs["t"][0].leader
    on.keeps_out[1 - leader] = REFUSALS[0]
    producer = SteppedProducer(on, delivery_timeout=1000.0)
    ticket = producer.send("t", b"x", partition=0)
    producer.settle()
    assert ticket.result().offset == 0


def test_a_reader_that_is_kept_out_says_so() -> None:
    on = cluster(t=1)
    on.keeps_out[0] = REFUSALS[0]
    settings = ClientSettings(tuple(on.addresses.values()))
    places = {TopicPartition("t", 0): (Offset(0), None)}
    fetcher = Fetcher(settings, FetchOptions(patience=1000.0), on.network(), on.clock, places)
    for _ in range(10):
        fetcher.run_once(1.0)
    with pytest.raises(ServerError, match="wrong password"):
        fetcher.take()


def test_tls_that_merely_ended_is_worth_another_try_and_distrust_is_not() -> None:
    address = Address("example", 9093)
    distrust = ssl.SSLCertVerificationError(1, "certificate verify failed")
    distrust.verify_message = "self-signed"
    assert keeps_us_out(tls_failed(address, distrust))
    assert keeps_us_out(tls_failed(address, ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]")))
    for error in (ssl.SSLEOFError(8, "EOF"), ConnectionResetError(104, "reset"), TimeoutError("late")):
        failure = tls_failed(address, error)
        assert isinstance(failure, Unreachable)
        assert not keeps_us_out(failure)
