"""An issuer of signed tokens (JWT) for tests, and the settings with which servers check them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

ISSUER: Final = "https://id.example"
RULES: Final = {"oauth_issuer": ISSUER, "oauth_audience": "fencepost"}


class Issuer:
    """Keys, and the file in which the server finds them."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.keys: dict[str, RSAPrivateKey] = {}
        self.add("one")

    def add(self, name: str) -> None:
        self.keys[name] = rsa.generate_private_key(65537, 2048)
        self.publish(*self.keys)

    def publish(self, *names: str) -> None:
        rows = []
        for name in names:
            row = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.keys[name].public_key()))
            rows.append({**row, "kid": name, "use": "sig", "alg": "RS256"})
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps({"keys": rows}))
        fresh.rename(self.file)

    def token(self, *, by: str = "one", key: Any = None, algorithm: str = "RS256", **claims: Any) -> str:
        now = time.time()
        all_claims = {"sub": "alice", "iss": ISSUER, "aud": "fencepost", "iat": now, "exp": now + 600, **claims}
        kept = {name: value for name, value in all_claims.items() if value is not None}
        made: str = jwt.encode(kept, key or self.keys[by], algorithm=algorithm, headers={"kid": by})
        return made
