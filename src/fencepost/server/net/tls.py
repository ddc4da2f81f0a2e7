"""TLS of a listener: contexts from its files, and the transport between the socket and a connection.

Only servers with a listener for TLS import this module.

The transport is our own instead of the loop's, for three reasons. A handshake costs up to a millisecond of signing, so
it runs in a thread, and a flood of handshakes does not delay other clients. Each connection takes the context that is
current when it is accepted, so that a reload needs no new socket. And a failed handshake is one clear log line.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, cast

from fencepost.core.security.certificate_name import PrincipalRules, subject_of
from fencepost.core.security.principal import USER, Principal
from fencepost.errors import ConfigError, FencepostError
from fencepost.server.config.listener import ListenerConfig, WrongSetting
from fencepost.server.net.receiving import ReceiveBuffers

if TYPE_CHECKING:
    from fencepost.server.net.connection import Connection
    from fencepost.server.net.listener import Listener

logger = logging.getLogger(__name__)

_BY_CERTIFICATE: Final = "TLS"
"""The mechanism of a login by certificate, in the audit log."""

_RECEIVE_BYTES: Final = 64 * 1024
"""Encrypted bytes read at once: four records of TLS. A connection that must wait keeps at most so many unread."""
_BUFFERS: Final = ReceiveBuffers(_RECEIVE_BYTES)
_JOINED_BYTES: Final = 16 * 1024
"""Pieces of an answer up to this size are joined: each call of `write` makes a TLS record, however short."""
_ENCRYPTED_AT_ONCE: Final = 64 * 1024
"""A longer piece is encrypted and handed to the socket in steps. The bytes stay in the processor's cache, and the
connection keeps a buffer of this size instead of one for its largest answer."""
_HANDSHAKE_THREADS: Final = 2
_HANDSHAKE_BYTES: Final = 256 * 1024
"""More bytes than any handshake needs, client certificates with long chains included."""


def make_context(listener: ListenerConfig) -> ssl.SSLContext:
    """Return a context with the listener's certificates; raise WrongSetting if its files cannot be used."""
    if listener.certificate is None:
        raise WrongSetting(listener.named("certificate"), f"{listener.named('certificate')} is missing")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # Sessions would let a client come back with a certificate that the server does not trust any more.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    name = listener.named("certificate")
    try:
        context.load_cert_chain(listener.certificate, listener.key, password=_no_password(listener))
    except ssl.SSLError as error:
        raise WrongSetting(name, f"{name}: {_why_not_loaded(listener, error)}") from error
    except OSError as error:
        path = listener.certificate if listener.key is None or not listener.certificate.exists() else listener.key
        raise WrongSetting(name, f"{name}: cannot read {path}: {error.strerror or error}") from error
    if listener.client_ca is not None:
        name = listener.named("client_ca")
        try:
            context.load_verify_locations(listener.client_ca)
        except ssl.SSLError as error:
            raise WrongSetting(name, f"{name}: {listener.client_ca} has no certificate in PEM form") from error
        except OSError as error:
            raise WrongSetting(name, f"{name}: cannot read {listener.client_ca}: {error.strerror or error}") from error
        required = listener.client_certificate == "required"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def _no_password(listener: ListenerConfig) -> Callable[[], str]:
    """OpenSSL would ask for the password on the terminal."""

    def refuse() -> str:
        raise WrongSetting(
            listener.named("key"),
            f"{listener.named('key')}: the key has a password; store it without one, readable for the server only",
        )

    return refuse


def _why_not_loaded(listener: ListenerConfig, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key does not belong to the certificate {listener.certificate}"
    if error.reason in ("NO_START_LINE", "PEM_LIB") or error.reason is None:
        return f"{listener.certificate} or its key is not in PEM form"
    return f"{listener.certificate} cannot be used: {error.reason or error}"


class ServerTls:
    """The TLS of one listener: the current context. A reload replaces it; open connections keep theirs."""

    def __init__(self, listener: ListenerConfig) -> None:
        self.context = make_context(listener)
        self.rules = PrincipalRules(listener.principal_mapping_rules)

    def accept(self, connection: Connection, listener: Listener) -> TlsTransport:
        """Return the protocol of a new socket, which becomes the connection's transport after the handshake."""
        if listener.handshake_threads is None:
            listener.handshake_threads = ThreadPoolExecutor(_HANDSHAKE_THREADS, thread_name_prefix="fencepost-tls")
        return TlsTransport(connection, self, listener, listener.handshake_threads)


class TlsTransport(asyncio.BufferedProtocol):
    """Protocol of the socket and, after the handshake, transport of the connection."""

    def __init__(self, connection: Connection, tls: ServerTls, listener: Listener, threads: ThreadPoolExecutor) -> None:
        self._connection = connection
        self._tls = tls
        self._listener = listener
        self._threads = threads
        self._raw: asyncio.Transport | None = None
        self.client_host = ""
        """Implement `Pending`."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = tls.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._buffer = _BUFFERS.for_connection()
        self._shaken = False
        """The handshake is done; the connection has this transport."""
        self._in_thread = False
        self._handshake_bytes = 0
        self._paused = False
        """The connection wants no more bytes now."""
        self._decrypting = False
        self._client_left = False
        """The client has said that it sends nothing more."""
        self._lost = False
        """The socket was closed while a thread had the handshake."""

    @property
    def peer(self) -> str:
        there = self._raw.get_extra_info("peername") if self._raw is not None else None
        return f"{there[0]}:{there[1]}" if there else "?"

    # -- the socket's protocol ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast("asyncio.Transport", transport)
        there = transport.get_extra_info("peername")
        self.client_host = there[0] if there else ""
        why = self._listener.accepts(self.client_host)
        if why is not None:
            self.refuse(why)
        else:
            self._listener.wait_for(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.write(self._buffer[:nbytes])
        if self._shaken:
            self._decrypt()
            return
        self._handshake_bytes += nbytes
        if self._handshake_bytes > _HANDSHAKE_BYTES:
            self._fail("the handshake is too long")
            return
        self._shake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self._in_thread:
            self._lost = True
        elif self._shaken:
            self._connection.connection_lost(error)
        else:
            self._listener.settled(self)

    def pause_writing(self) -> None:
        if self._shaken:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._shaken:
            self._connection.resume_writing()

    # -- the handshake ------------------------------------------------------------------------------------------

    def _shake(self) -> None:
        """Let a thread work on the handshake with the bytes received so far. The socket waits meanwhile: nobody else
        may touch the SSL object."""
        assert self._raw is not None
        if self._raw.is_closing():
            return
        self._raw.pause_reading()
        self._in_thread = True
        loop = asyncio.get_running_loop()
        working = loop.run_in_executor(self._threads, _step, self._ssl)
        working.add_done_callback(self._step_done)

    def _step_done(self, working: asyncio.Future[str | None]) -> None:
        self._in_thread = False
        raw = self._raw
        assert raw is not None
        if self._lost or raw.is_closing():
            if self._lost:
                self._listener.settled(self)
            working.exception()  # asyncio reports exceptions that nobody has looked at
            return
        failure: str | None = None
        finished = False
        try:
            finished = working.result() is None
        except ssl.SSLError as error:
            failure = why_failed(error)
        except OSError as error:
            failure = error.strerror or str(error)
        self._flush()
        if failure is not None:
            self._fail(failure)
        elif finished:
            self._begin()
        else:
            raw.resume_reading()

    def _begin(self) -> None:
        """Hand over to the connection, which now has a principal."""
        assert self._raw is not None
        session = self._connection.session
        certificate = self._ssl.getpeercert(binary_form=True)
        if certificate is not None:
            try:
                subject = subject_of(certificate)
            except FencepostError as error:
                self._fail(f"the client's certificate cannot be read: {error}")
                return
            name = self._tls.rules.name(subject)
            if name is None:
                self._fail(f"no rule of principal_mapping_rules matches the certificate's subject {subject!r}")
                return
            session.principal = Principal(USER, name)
        self._shaken = True
        self._listener.settled(self)
        self._connection.connection_made(self)  # type: ignore[arg-type]
        if certificate is not None and session.authenticated:
            self._listener.broker.audit.login_succeeded(self._connection, _BY_CERTIFICATE)
        if not self._raw.is_closing() and not self._paused:
            self._raw.resume_reading()
        self._decrypt()  # requests that came with the end of the handshake

    def _fail(self, why: str) -> None:
        """Close the socket; the client gets the alert that OpenSSL has written, if any."""
        assert self._raw is not None
        session = self._connection.session
        logger.warning("closing %s: TLS handshake on listener %s failed: %s", self.peer, session.listener.name, why)
        if session.listener.client_ca is not None:
            peer = self._raw.get_extra_info("peername")
            self._connection.peer, session.client_host = self.peer, peer[0] if peer else ""
            self._listener.broker.audit.login_failed(self._connection, "", _BY_CERTIFICATE, why)
        self._raw.close()

    def refuse(self, why: str) -> None:
        """Close the socket before the end of the handshake."""
        if self._raw is not None and not self._raw.is_closing():
            logger.warning("closing %s: %s", self.peer, why)
            self._raw.abort()

    # -- decrypting ----------------------------------------------------------------------------------------------

    def _decrypt(self) -> None:
        """Hand the received bytes to the connection, as far as it wants them."""
        if self._decrypting:
            return
        self._decrypting = True
        raw = self._raw
        assert raw is not None
        try:
            while not self._paused and not raw.is_closing():
                buffer = self._connection.get_buffer(-1)
                filled = self._fill(buffer)
                if filled:
                    self._connection.buffer_updated(filled)
                if filled < len(buffer):
                    break
        except ssl.SSLError as error:
            logger.warning("closing %s: %s", self.peer, why_failed(error))
            raw.abort()
        finally:
            self._decrypting = False
        self._flush()
        if self._client_left:
            self.close()  # with a goodbye, for which some clients wait

    def _fill(self, buffer: memoryview) -> int:
        """Decrypt into the buffer until it is full or no whole record is left."""
        filled = 0
        try:
            while filled < len(buffer):
                read = self._ssl.read(len(buffer) - filled, buffer[filled:])
                if not read:
                    self._client_left = True
                    break
                filled += cast("int", read)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._client_left = True
        return filled

    # -- the connection's transport -----------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines([data])

    def writelines(self, pieces: list[Any]) -> None:
        raw = self._raw
        assert raw is not None
        if raw.is_closing():
            return
        small: list[Any] = []
        try:
            for piece in pieces:
                if len(piece) <= _JOINED_BYTES:
                    small.append(piece)
                    continue
                if small:
                    self._ssl.write(b"".join(small))
                    small = []
                view = memoryview(piece)
                for at in range(0, len(view), _ENCRYPTED_AT_ONCE):
                    self._ssl.write(view[at : at + _ENCRYPTED_AT_ONCE])
                    self._flush()
            if small:
                self._ssl.write(b"".join(small))
        except ssl.SSLError as error:
            logger.warning("closing %s: %s", self.peer, why_failed(error))
            raw.abort()
            return
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and self._raw is not None and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    def pause_reading(self) -> None:
        assert self._raw is not None
        self._paused = True
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        assert self._raw is not None
        self._paused = False
        if not self._raw.is_closing():
            self._raw.resume_reading()
        # Not at once: the connection may be in the middle of its work.
        asyncio.get_running_loop().call_soon(self._decrypt)

    def close(self) -> None:
        assert self._raw is not None
        if not self._raw.is_closing():
            self._say_goodbye()
            self._raw.close()

    def _say_goodbye(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # it asks for the client's goodbye, for which nobody waits here
            self._ssl.unwrap()
        self._flush()

    def abort(self) -> None:
        assert self._raw is not None
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw is None or self._raw.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._raw.get_extra_info(name, default) if self._raw is not None else default

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size() if self._raw is not None else 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert self._raw is not None
        self._raw.set_write_buffer_limits(high, low)


def _step(shaking: ssl.SSLObject) -> str | None:
    """Continue the handshake. Return None if it is done, or what it waits for."""
    try:
        shaking.do_handshake()
    except ssl.SSLWantReadError:
        return "read"
    return None


_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has no certificate, and client_certificate is 'required'",
    "HTTP_REQUEST": "the client speaks HTTP",
    "HTTPS_PROXY_REQUEST": "the client speaks HTTP",
    "WRONG_VERSION_NUMBER": "the client does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "the client speaks a version of TLS before 1.2",
    "NO_SHARED_CIPHER": "the client and the server have no cipher in common",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the server's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not trust the server's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not trust the server's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client finds the server's certificate expired",
    "UNEXPECTED_EOF_WHILE_READING": "the client closed the connection",
}


def why_failed(error: ssl.SSLError) -> str:
    """Return the reason of a failure in plain words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    return _REASONS.get(error.reason or "", error.reason or str(error))


def check_files(listener: ListenerConfig) -> None:
    """Raise ConfigError if the listener's files cannot be used."""
    try:
        ServerTls(listener)
    except WrongSetting:
        raise
    except ConfigError as error:
        name = listener.named("principal_mapping_rules")
        raise WrongSetting(name, f"{name}: {error}") from error
