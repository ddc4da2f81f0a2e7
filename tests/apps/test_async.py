"""asyncio applications: timeouts and cancelled tasks."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from fencepost import AsyncReader, Producer
from fencepost.client.read.fetcher import Chunk
from fencepost.client.reader import Reader

pytestmark = pytest.mark.integration

COUNT = 1000


@pytest.fixture
def filled(address: str, topic: str) -> str:
    with Producer(address) as producer:
        producer.send_arrow(topic, pa.table({"value": [b"%d" % number for number in range(COUNT)]}))
    return topic


def slowly(decode: Any) -> Any:
    """As with a chunk of many megabytes: it takes longer than the caller's timeout."""

    def decoded(reader: Reader, chunk: Chunk) -> Any:
        time.sleep(0.1)
        return decode(reader, chunk)

    return decoded


@pytest.mark.parametrize("how", ["records", "arrow"])
def test_a_timeout_shorter_than_the_decoding_of_a_chunk_does_not_stop_a_reader(
    address: str, filled: str, how: str
) -> None:
    async def read() -> list[bytes | None]:
        found: list[bytes | None] = []
        async with AsyncReader(address, filled, stop="latest") as reader:
            for _ in range(100):
                tables = reader.arrow()
                try:
                    if how == "records":
                        found.append((await asyncio.wait_for(anext(reader), 0.03)).value)
                        found += [record.value async for record in reader]
                    else:
                        found += (await asyncio.wait_for(anext(tables), 0.03)).column("value").to_pylist()
                except TimeoutError:
                    continue
                if len(found) == COUNT:
                    break
        return found

    with patch.object(Reader, "_decode", slowly(Reader._decode)), patch.object(Reader, "_table", slowly(Reader._table)):
        assert asyncio.run(read()) == [b"%d" % number for number in range(COUNT)]


def test_records_that_a_cancelled_task_was_decoding_are_not_lost_to_a_table(address: str, filled: str) -> None:
    """The next call decodes the chunk in its own form."""
    go_on = threading.Event()
    decode = Reader._decode

    def decoded(reader: Reader, chunk: Chunk) -> Any:
        assert go_on.wait(60)
        return decode(reader, chunk)

    async def read() -> list[bytes | None]:
        async with AsyncReader(address, filled, stop="latest") as reader:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(reader), 0.2)
            go_on.set()
            return [value async for table in reader.arrow() for value in table.column("value").to_pylist()]

    with patch.object(Reader, "_decode", decoded):
        assert asyncio.run(read()) == [b"%d" % number for number in range(COUNT)]
