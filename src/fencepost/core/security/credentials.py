"""SCRAM credentials: what the server keeps instead of a password (RFC 5802).

From a credential nobody can derive the password, nor log in with SCRAM. As in Kafka, passwords and names are taken as
UTF-8 without SASLprep, because clients do not apply it either.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from fencepost.errors import ConfigError

ITERATIONS: Final = range(4096, 16385)
"""Numbers of iterations that a credential may have, as in Kafka."""
MIN_SALT_BYTES: Final = 1
"""Kafka has no minimum, but clients cannot log in without a salt."""
MAX_SALT_BYTES: Final = 1024
MAX_NAME_CHARACTERS: Final = 255


class Mechanism(IntEnum):
    """The SCRAM mechanisms with their numbers in AlterUserScramCredentials."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        return "sha256" if self is Mechanism.SCRAM_SHA_256 else "sha512"

    @property
    def digest_bytes(self) -> int:
        return 32 if self is Mechanism.SCRAM_SHA_256 else 64


SCRAM: Final = {mechanism.sasl_name: mechanism for mechanism in Mechanism}


class Credential(NamedTuple):
    mechanism: Mechanism
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def fits(self, password: str) -> bool:
        """Tell if this is the password. It takes milliseconds of CPU, by design."""
        derived = derive(self.mechanism, password, self.salt, self.iterations)
        return hmac.compare_digest(derived.stored_key, self.stored_key)

    def __repr__(self) -> str:
        return f"<Credential {self.mechanism.sasl_name}, {self.iterations} iterations>"  # keys stay out of logs


def check_user_name(name: str) -> None:
    if not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise ConfigError(f"a user's name must have 1 to {MAX_NAME_CHARACTERS} characters, not {len(name)}")


def derive(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> Credential:
    """Return the credential of a password. It takes milliseconds of CPU, by design."""
    return from_salted(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def salted_password(mechanism: Mechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the salted hash of a password. It takes milliseconds of CPU, by design."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode("utf-8", "surrogatepass"), salt, iterations)


def from_salted(mechanism: Mechanism, salted: bytes, salt: bytes, iterations: int) -> Credential:
    """Return the credential of a salted password, which is what admin clients send."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    return Credential(
        mechanism,
        salt,
        iterations,
        hashlib.new(mechanism.hash_name, client_key).digest(),
        hmac.digest(salted, b"Server Key", mechanism.hash_name),
    )


class Shape(NamedTuple):
    """The part of a credential that a client sees before it has proved anything, or can guess from the time of a check.
    The tools that make credentials differ in it."""

    mechanism: Mechanism
    iterations: int
    salt_bytes: int | None
    """None: the salt is text, as Java's clients make it."""


def shape_of(credential: Credential) -> Shape:
    salt = credential.salt
    is_text = _TEXT_SALT_BYTES[0] <= len(salt) <= _TEXT_SALT_BYTES[-1] and all(byte in _DIGITS for byte in salt)
    return Shape(credential.mechanism, credential.iterations, None if is_text else len(salt))


def decoy(mechanism: Mechanism, name: str, secret: bytes, shapes: Iterable[Shape] = ()) -> Credential:
    """Return the credential of a user who does not exist. It is the same for every attempt, and different for every
    name, so that a stranger cannot tell it from a real one; no password fits it.

    `shapes` are those of real credentials. Each name is given one of them. A new shape takes some names over, and
    changes nothing for the others."""
    named = name.encode("utf-8", "surrogatepass")
    usual = Shape(mechanism, ITERATIONS[0], _DECOY_SALT_BYTES)
    shape = max(shapes, key=lambda each: hmac.digest(secret, repr(each).encode() + named, "sha256"), default=usual)
    seed = hmac.digest(secret, named + bytes([shape.mechanism]), "sha512")
    stored = hmac.digest(secret, b"stored" + seed, shape.mechanism.hash_name)
    server = hmac.digest(secret, b"server" + seed, shape.mechanism.hash_name)
    if shape.salt_bytes is None:
        salt = _as_text(int.from_bytes(seed, "big") % (1 << _TEXT_SALT_BITS))
    else:
        salt = hashlib.shake_256(seed).digest(shape.salt_bytes)
    return Credential(shape.mechanism, salt, shape.iterations, stored, server)


def _as_text(number: int) -> bytes:
    digits = bytearray()
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return bytes(reversed(digits))


_DECOY_SALT_BYTES: Final = 24
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
_TEXT_SALT_BITS: Final = 130
"""Java's clients write a random number of so many bits to the base of 36."""
_TEXT_SALT_BYTES: Final = range(20, 27)
"""Lengths of such a salt."""
