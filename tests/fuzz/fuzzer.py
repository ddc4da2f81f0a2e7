"""Feeds the compiled kernel broken input and compares what it says with its twin.

    python -m tests.fuzz.fuzzer [INPUTS] [SEED]

Run by `run.sh` on a kernel that is built with AddressSanitizer, where any read or write out of bounds ends the process;
run briefly, without it, among the unit tests.
"""

from __future__ import annotations

import random
import secrets
import sys
from typing import Any, Final

from fencepost.errors import CorruptBatch, UnsupportedFormat
from fencepost.kernel import _batch, batch_py, columns_py, intake_py, read_header, walk_py
from fencepost.kernel.codecs import LZ4
from fencepost.kernel.record import BytesColumn, HeaderColumn, NumberColumn, RecordColumns
from tests.fuzz.hostile import Hostile, malformed_batches

MAX_BYTES: Final = 1 << 20
_ATTRIBUTES_AT: Final = 22
"""The byte of a batch's attributes that names the codec."""
_EXTREMES: Final = (-(2**31), -1, 0, 1, 2, 7, 8, 1000, 2**31 - 1)


class Differ(AssertionError):
    """The compiled kernel and its twin disagree."""


def fuzz(inputs: int, seed: int) -> dict[str, int]:
    """Tries the catalogue and then random input until `inputs` are done; how many came out how."""
    hostile = Hostile(seed)
    outcomes = {"sound": 0, "refused": 0}
    for _, batch in malformed_batches():
        outcomes[_try_batch(batch, hostile.random)] += 1
    while sum(outcomes.values()) < inputs:
        choice = hostile.random.random()
        if choice < 0.88:
            outcomes[_try_batch(hostile.batch(), hostile.random)] += 1
        elif choice < 0.96:
            outcomes[_try_columns(hostile.random)] += 1
        elif choice < 0.98:
            outcomes[_try_intake(hostile.random)] += 1
        else:
            outcomes[_try_build(hostile.random)] += 1
    return outcomes


def _answer(call: Any) -> object:
    try:
        return call()
    except (CorruptBatch, UnsupportedFormat, ValueError) as error:
        return type(error).__name__


def _try_batch(batch: bytes, chance: random.Random) -> str:
    records = _answer(lambda: _batch.decode_batch(batch, check=False, max_bytes=MAX_BYTES))
    if not _agree(batch, records, _answer(lambda: batch_py.decode_batch(batch, check=False, max_bytes=MAX_BYTES))):
        raise Differ(f"decode_batch: {batch.hex()}")
    start, stop = sorted(chance.choices((0, 1, 3, 40, 2**62), k=2))
    for headers in (True, False):
        decoders = _batch.ColumnDecoder(headers=headers), columns_py.ColumnDecoder(headers=headers)
        taken = [_answer(lambda decoder=decoder: _decode(decoder, batch, start, stop)) for decoder in decoders]
        if not _agree(batch, *taken):
            raise Differ(f"ColumnDecoder: {batch.hex()}")
    for walk in _WALKS:
        if not _agree(
            batch, _answer(lambda walk=walk: walk(_batch, batch)), _answer(lambda walk=walk: walk(walk_py, batch))
        ):
            raise Differ(f"walk: {batch.hex()}")
    return "refused" if isinstance(records, str) else "sound"


def _scan_with_its_header(kernel: Any, batch: bytes) -> object:
    return kernel.scan_batch(batch, header=read_header(batch), max_bytes=MAX_BYTES)


def _sift(kernel: Any, batch: bytes) -> object:
    keys = kernel.KeyOffsets(10)
    keys.note(batch, max_bytes=MAX_BYTES)
    found: list[object] = [len(keys)]
    for horizon in (None, 0, 2**63 - 1):
        sifted = keys.sift(batch, start_offset=1, drop_tombstones=False, horizon=horizon, max_bytes=MAX_BYTES)
        found += [*sifted[:3], None if sifted.records is None else bytes(sifted.records)]
    return found


_WALKS: Final = (
    lambda kernel, batch: kernel.scan_batch(batch, check=False, max_bytes=MAX_BYTES),
    lambda kernel, batch: kernel.find_time(batch, timestamp=1_700_000_000_001, check=False, max_bytes=MAX_BYTES),
    _scan_with_its_header,
    _sift,
)


def _agree(batch: bytes, compiled: object, twin: object) -> bool:
    """Of LZ4 blocks that nobody's encoder would write, the library's decoder and ours may refuse different ones (a
    match at distance nought, or in the last bytes of a block). What both take must be the same.
    """
    if compiled == twin:
        return True
    is_lz4 = len(batch) > _ATTRIBUTES_AT and batch[_ATTRIBUTES_AT] & 7 == LZ4
    return is_lz4 and CorruptBatch.__name__ in (compiled, twin)


def _decode(decoder: Any, batch: bytes, start: int, stop: int) -> object:
    decoder.add(batch, start=start, stop=stop, check=False, max_bytes=MAX_BYTES)
    return plain(decoder.take())


def plain(columns: object) -> object:
    """Columns as nested lists of bytes, to compare them whoever owns the memory."""
    if isinstance(columns, tuple):
        return [plain(part) for part in columns]
    return columns if columns is None or isinstance(columns, int) else bytes(memoryview(columns))  # type: ignore[arg-type]


# --- columns to encode from, whose buffers do not fit together ---


def _numbers(chance: random.Random, count: int, width: int) -> bytes:
    rising = sorted(chance.randrange(40) for _ in range(count))
    if rising and chance.random() < 0.3:
        rising[chance.randrange(count)] = chance.choice(_EXTREMES)
    return b"".join(number.to_bytes(width, sys.byteorder, signed=True) for number in rising)


def _bytes_column(chance: random.Random, rows: int) -> BytesColumn:
    first, wide = chance.randrange(3), chance.random() < 0.5
    missing = chance.random() < 0.05
    return BytesColumn(
        rows,
        _numbers(chance, rows + first + (0 if missing else 1), 8 if wide else 4),
        chance.randbytes(chance.choice((0, 20, 40, 60))),
        chance.choice((None, chance.randbytes((rows + first + 7) // 8), chance.randbytes(1))),
        first,
        wide,
    )


def _columns(chance: random.Random) -> RecordColumns:
    rows = chance.randrange(20)
    headers = None
    if chance.random() < 0.7:
        inner = chance.randrange(50)
        headers = HeaderColumn(
            rows, _numbers(chance, rows + 1, 4), _bytes_column(chance, inner), _bytes_column(chance, inner)
        )
    timestamp = NumberColumn(rows, chance.randbytes(8 * rows), chance.choice((None, b"\xaa\xaa\xaa")))
    return RecordColumns(
        rows if chance.random() < 0.95 else rows + 1,
        chance.choice((None, _bytes_column(chance, rows))),
        _bytes_column(chance, rows),
        chance.choice((None, timestamp)),
        headers,
    )


def _try_columns(chance: random.Random) -> str:
    columns = _columns(chance)
    limit = chance.choice((0, 100, 300, 2**31 - 1))
    picked = chance.choice((None, _numbers(chance, columns.rows, 4)))
    partitions = chance.randrange(1, 5)
    chosen = _numbers(chance, columns.rows, 4)

    def encode(kernel: Any, builder: Any) -> object:
        builder.append(b"first", b"record", 5)
        source = kernel.ColumnSource(columns)
        stopped = builder.append_columns(source, 0, columns.rows, timestamp=7, rows=picked, limit=limit)
        return stopped, builder.records(), bytes(kernel.partition_rows(source, partitions))

    def group(kernel: Any) -> object:
        order, bounds = kernel.group_rows(chosen, partitions)
        return bytes(order), bounds

    compiled, twin = _batch.BatchBuilder(), batch_py.BatchBuilder()
    answer = _answer(lambda: encode(_batch, compiled))
    if answer != _answer(lambda: encode(columns_py, twin)) or compiled.records() != twin.records():
        raise Differ(f"append_columns: {columns} {picked!r} {limit}")
    if _answer(lambda: group(_batch)) != _answer(lambda: group(columns_py)):
        raise Differ(f"group_rows: {chosen!r} {partitions}")
    return "refused" if isinstance(answer, str) else "sound"


# --- the way into open batches ---


class _Desk:
    """A topic whose slow way appends where it can, and otherwise says what it was asked."""

    def __init__(self, kernel: Any, builder: type[Any], open_slots: list[bool], limit: int) -> None:
        self.lane = kernel.TopicSlots(kernel.Budget(limit))
        self.builders = [builder(4) if is_open else None for is_open in open_slots]
        slots = []
        for one in self.builders:
            slot = kernel.Slot()
            if one is not None:
                slot.begin(one, one)
            slots.append(slot)
        self.lane.undesignated = slots.pop()
        self.lane.set_slots(slots)
        self.intake = kernel.Intake({"t": self.lane}, kernel.Place, self.slowly, 400)
        self.intake.is_open = True

    def slowly(self, topic: str, value: Any, key: Any, headers: Any, partition: Any, timestamp: Any) -> object:
        """What the compiled way leaves over, and all that the twin gets: refuses whatever is odd, as `Queues` does."""
        if timestamp is None or not -(2**63) <= timestamp < 2**63 or topic != "t":
            raise ValueError("refused")
        for part in (key, value):
            if part is not None and not isinstance(part, bytes | str | bytearray):
                raise ValueError("refused")
        slot = self._slot(key, partition)
        if slot.builder is None:
            raise ValueError("refused")
        return slot.batch.count, slot.append(self.lane, key, value, timestamp, headers)

    def _slot(self, key: Any, partition: Any) -> Any:
        slots = self.lane.slots
        if partition is None and len(slots) == 1:
            partition = 0
        if partition is None and key is None:
            return self.lane.undesignated
        if partition is None:
            data = key.encode() if isinstance(key, str) else key
            partition = batch_py.partition_for_key(data, len(slots)) if slots else -1
        if not 0 <= partition < len(slots):
            raise ValueError("refused")
        return slots[partition]

    def send(self, arguments: dict[str, Any]) -> object:
        """Refused, or how many records its batch had before."""
        try:
            placed = self.intake.send(**arguments)
        except (ValueError, TypeError, OverflowError):  # the two look at their arguments in different orders
            return "refused"
        return placed[1] if isinstance(placed, tuple) else placed.index


def _odd_payload(chance: random.Random) -> object:
    return chance.choice(
        (
            None,
            b"",
            b"key",
            chance.randbytes(chance.randrange(90)),
            "text",
            "\u00fc",
            "\ud800",
            bytearray(b"lent"),
            7,
            [],
        )
    )


def _try_intake(chance: random.Random) -> str:
    """The same odd calls of `send` to both; the batches, what was charged and what was refused must be the same.
    Batches are larger here than the compiled way fills them, so the slow way goes on where it stops.
    """
    partitions = chance.randrange(4)
    open_slots = [chance.random() < 0.8 for _ in range(partitions + 1)]
    limit = chance.choice((2**40, 2**62))
    compiled = _Desk(_batch, _batch.BatchBuilder, open_slots, limit)
    twin = _Desk(intake_py, batch_py.BatchBuilder, open_slots, limit)
    refused = False
    for _ in range(chance.randrange(1, 30)):
        arguments = {
            "topic": chance.choice(("t", "t", "t", "unknown", b"t", None)),
            "key": _odd_payload(chance),
            "value": _odd_payload(chance),
            "headers": chance.choice((None, None, None, [], [("name", b"value")], [(1, 2)])),
            "partition": chance.choice((None, None, None, 0, 1, -1, 2**70)),
            "timestamp": chance.choice((0, 5, -(2**63), 2**63 - 1, 2**63, -(2**80))),
        }
        answers = [desk.send(arguments) for desk in (compiled, twin)]
        if answers[0] != answers[1]:
            raise Differ(f"send: {arguments} {answers}")
        refused = refused or answers[0] == "refused"
    for ours, theirs in zip(compiled.builders, twin.builders, strict=True):
        if ours is not None and theirs is not None and ours.records() != theirs.records():
            raise Differ(f"send: {ours.records().hex()} {theirs.records().hex()}")
    if (compiled.lane.held, compiled.lane.budget.held) != (twin.lane.held, twin.lane.budget.held):
        raise Differ(f"send: {compiled.lane.held} and {twin.lane.held} bytes charged")
    return "refused" if refused else "sound"


# --- building: the compiled kernel compresses and checksums by itself ---


def _try_build(chance: random.Random) -> str:
    words = [chance.randbytes(chance.randrange(1, 40)) for _ in range(chance.choice((1, 5, 300)))]
    size = chance.choice((0, 5, 12, 13, 14, 300, 5_000, 65_500, 65_560))
    value = b"".join(chance.choices(words, k=size // 20 + 1))[:size]
    codec = chance.choice((0, 3, 3, 3))
    compiled, twin = _batch.BatchBuilder(chance.choice((0, 1, 100))), batch_py.BatchBuilder()
    for builder in (compiled, twin):
        builder.append(value[:7], value, 5, [("name", value[:300])])
        builder.append(None, value[:40], 5)
    batch = compiled.build(codec)
    same = (
        batch == twin.build(codec)
        if codec != LZ4
        else batch_py.decode_batch(batch) == batch_py.decode_batch(twin.build())
    )
    if not same or compiled.finish(codec) != batch:
        raise Differ(f"build: codec {codec}, {value.hex()}")
    return "sound"


def main() -> None:
    inputs = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else secrets.randbits(32)
    print(f"fuzzing the kernel with seed {seed}", flush=True)
    outcomes = fuzz(inputs, seed)
    print(f"{sum(outcomes.values())} inputs, seed {seed}: {outcomes['refused']} refused, {outcomes['sound']} sound")


if __name__ == "__main__":
    main()
