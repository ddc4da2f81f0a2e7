"""ApiVersions (18): the supported APIs and versions, from the registry. It is a client's first request.

Versions 0 to 4. v3 is flexible and adds the client's name and version; its answer still has the old header, so that a
client can read it before versions are negotiated. An unsupported version is answered in v0 with UNSUPPORTED_VERSION and
the versions of this API. No features are advertised, so transactions use the older protocol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields

_KEY: Final = 18
_FIRST_VERSION_WITH_NAME: Final = 3
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")

_MAX_NAME_CHARACTERS: Final = 255
"""Characters of a client's name that the server keeps."""


def handle(broker: Broker, request: ApiRequest) -> Fields:
    connection, message = request.connection, request.message
    if request.version >= _FIRST_VERSION_WITH_NAME:
        for word in (message.client_software_name, message.client_software_version):
            if not _LEGAL_NAME.fullmatch(word):
                return {"error_code": ErrorCode.INVALID_REQUEST, "api_keys": []}
        connection.software_name = message.client_software_name[:_MAX_NAME_CHARACTERS]
    return {"error_code": ErrorCode.NONE, "api_keys": _ranges(connection.apis), "finalized_features_epoch": -1}


def unsupported_version(apis: Mapping[int, Api]) -> Fields:
    return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": _ranges({_KEY: apis[_KEY]})}


def _ranges(apis: Mapping[int, Api]) -> list[Fields]:
    return [
        {
            "api_key": api.key,
            "min_version": api.versions[0] if api.advertise_from is None else api.advertise_from,
            "max_version": api.versions[1],
        }
        for api in apis.values()
    ]


API = Api(key=_KEY, name="ApiVersions", versions=(0, 4), handle=handle)
