"""Tokens of OAUTHBEARER: JWTs, checked against the keys (JWKS) of their issuer. Needs the extra `oauth` (PyJWT).

A token must be signed by one of the issuer's keys with an asymmetric algorithm, and have `exp`, `iss`, `aud` and `sub`.
The keys come from a file, which is read again when it changes, or from an address, which is asked again for an unknown
key and every few minutes. Both block, so a token is checked in a thread.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost.core.security.credentials import MAX_NAME_CHARACTERS
from fencepost.errors import ConfigError
from fencepost.server.security.sasl import LoginFailed

if TYPE_CHECKING:
    import jwt

logger = logging.getLogger(__name__)

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Asymmetric ones only: with a symmetric one, everybody who knows the public key could sign."""
_SKEW_SECONDS: Final = 30
"""Difference between the issuer's clock and this one's that is tolerated."""
_ASK_AGAIN_SECONDS: Final = 10.0
"""An address is asked for keys only this long after its last answer, or after it did not answer."""
_STALE_SECONDS: Final = 300.0
"""An address is asked again after this time, because the issuer may have withdrawn a key."""
_ANSWER_SECONDS: Final = 5.0
"""Time for an address to answer."""
_OTHERS_WAIT_SECONDS: Final = 1.0
"""Time that a token with an unknown key waits while another one has the address asked."""
_LATEST_MS: Final = 253_402_300_799_000
"""The end of the year 9999. A later end of a token would not fit into an answer."""
_REQUIRED: Final = ("exp", "iss", "aud", "sub")


class TokenBearer(NamedTuple):
    """The owner of a valid token."""

    user: str
    ends_ms: int
    """The end of the token's life, in ms since 1970."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    issuer: str
    audience: str
    jwks: str
    subject_claim: str


class Tokens:
    """The checks of tokens. Threads share it."""

    def __init__(self, rules: TokenRules) -> None:
        try:
            import jwt  # noqa: F401
        except ImportError as error:
            raise ConfigError("OAUTHBEARER needs PyJWT: pip install 'fencepost[oauth]'") from error
        self._rules = rules
        self._lock = threading.Lock()
        self._keys: dict[str | None, Any] = {}
        self._read_at: object = None
        """The file's time and size, or the time at which the address was asked."""
        if not self._is_address:
            self._load(force=True)

    @property
    def _is_address(self) -> bool:
        return self._rules.jwks.startswith(("https://", "http://"))

    def check(self, token: str) -> TokenBearer:
        """Return the owner of the token, or raise LoginFailed. Blocks."""
        import jwt

        try:
            claims = jwt.decode(
                token,
                self._key_of(jwt.get_unverified_header(token)),
                algorithms=list(ALGORITHMS),
                issuer=self._rules.issuer,
                audience=self._rules.audience,
                leeway=_SKEW_SECONDS,
                options={"require": list(_REQUIRED)},
            )
            ends_ms = min(int(float(claims["exp"]) * 1000), _LATEST_MS)
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            raise LoginFailed(f"authentication failed: invalid token ({type(error).__name__})") from None
        user = claims.get(self._rules.subject_claim)
        if not isinstance(user, str) or not 0 < len(user) <= MAX_NAME_CHARACTERS:
            raise LoginFailed(
                f"authentication failed: the token's {self._rules.subject_claim!r} must have 1 to "
                f"{MAX_NAME_CHARACTERS} characters"
            )
        return TokenBearer(user, ends_ms)

    def _key_of(self, header: dict[str, Any]) -> jwt.PyJWK:
        import jwt

        kid = header.get("kid")
        if not self._is_address:
            with self._lock:
                self._load()
        found = self._keys.get(kid)
        # A token with a known key does not wait for another thread, so strangers with unknown keys cannot delay it.
        patience = 0.0 if found is not None else _OTHERS_WAIT_SECONDS if self._keys else _ANSWER_SECONDS
        if (found is None or self._is_stale) and self._is_address and self._lock.acquire(timeout=patience):
            try:
                self._load()
            finally:
                self._lock.release()
            found = self._keys.get(kid)
        if found is None:
            raise jwt.InvalidKeyError("no key of the issuer has the token's kid")
        key: jwt.PyJWK = found
        return key

    @property
    def _is_stale(self) -> bool:
        return isinstance(self._read_at, float) and time.monotonic() - self._read_at > _STALE_SECONDS

    def _load(self, *, force: bool = False) -> None:
        """Read the keys if they may have changed. If that fails, keep those that are known."""
        import jwt

        try:
            if self._is_address:
                if isinstance(self._read_at, float) and time.monotonic() - self._read_at < _ASK_AGAIN_SECONDS:
                    return
                try:
                    text = _fetch(self._rules.jwks)
                finally:
                    self._read_at = time.monotonic()
            else:
                stat = os.stat(self._rules.jwks)
                seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                if seen == self._read_at:
                    return
                text = Path(self._rules.jwks).read_bytes()
                self._read_at = seen
            keys = jwt.PyJWKSet.from_dict(json.loads(text)).keys
        except (OSError, ValueError, jwt.PyJWTError) as error:
            if force and not self._is_address:
                raise ConfigError(f"cannot read the keys in oauth.jwks={self._rules.jwks}: {error}") from error
            logger.warning("cannot read the keys in oauth.jwks=%s, the known ones stay: %s", self._rules.jwks, error)
            return
        self._keys = {key.key_id: key for key in keys}


def _fetch(address: str) -> bytes:
    from urllib.request import urlopen

    with urlopen(address, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310 - http or https, checked by the caller
        if address.startswith("https://") and not answer.url.startswith("https://"):
            raise OSError(f"{address} leads to {answer.url}, where anyone in between could replace the keys")
        body: bytes = answer.read(1 << 20)
    return body
