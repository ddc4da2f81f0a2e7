"""Keys and values of records in JSON: text as it is, other bytes in base64."""

from __future__ import annotations

import base64
from typing import Any


def json_bytes(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
