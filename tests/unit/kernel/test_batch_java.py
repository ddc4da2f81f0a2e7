"""Kafka's own Java classes read our batches, and we read theirs: every codec, both ways."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TypeAlias

import pytest

from fencepost.kernel import CODECS, split_batches
from fencepost.kernel.codecs import LZ4
from tests.unit.kernel.implementations import COMPILED, NOW

pytestmark = pytest.mark.kafka

# Prints what it reads from the first file, a record a line, and writes batches of the same records, one per codec, to
# the second.
PROGRAM = """
import java.io.FileOutputStream;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.*;
import java.util.*;
import org.apache.kafka.common.compress.*;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.common.record.internal.Record;

class Strangers {
    static String hex(ByteBuffer bytes) {
        if (bytes == null) return "-";
        byte[] copy = new byte[bytes.remaining()];
        bytes.duplicate().get(copy);
        return "x" + HexFormat.of().formatHex(copy);
    }

    public static void main(String[] args) throws Exception {
        List<SimpleRecord> seen = new ArrayList<>();
        MemoryRecords ours = MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(Path.of(args[0]))));
        for (MutableRecordBatch batch : ours.batches()) {
            batch.ensureValid();
            if (seen.size() >= 400) seen.clear();
            for (Record record : batch) {
                record.ensureValid();
                StringBuilder line = new StringBuilder();
                line.append(batch.compressionType().id).append(' ').append(record.offset()).append(' ');
                line.append(record.timestamp()).append(' ');
                line.append(hex(record.key())).append(' ').append(hex(record.value()));
                for (Header header : record.headers()) {
                    line.append(' ').append(header.key()).append('=');
                    line.append(hex(header.value() == null ? null : ByteBuffer.wrap(header.value())));
                }
                System.out.println(line);
                seen.add(new SimpleRecord(record));
            }
        }
        List<SimpleRecord> once = seen.subList(0, 400);
        SimpleRecord[] records = once.toArray(new SimpleRecord[0]);
        try (FileChannel out = new FileOutputStream(args[1]).getChannel()) {
            for (CompressionType type : CompressionType.values()) {
                out.write(MemoryRecords.withRecords(Compression.of(type).build(), records).buffer());
            }
        }
    }
}
"""

Row: TypeAlias = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]] | None]

ROWS: list[Row] = [
    (
        b"key-%d" % i if i % 3 else None,
        (b"value-%d " % i) * (i % 90) if i % 4 else None,
        NOW + i * 3,
        [("name", b"x"), ("other", None)] if i % 2 else None,
    )
    for i in range(400)
]


def cell(data: bytes | None) -> str:
    return "-" if data is None else f"x{data.hex()}"


def line(codec: int, offset: int, row: Row) -> str:
    key, value, timestamp, headers = row
    shown = [str(codec), str(offset), str(timestamp), cell(key), cell(value)]
    return " ".join(shown + [f"{name}={cell(data)}" for name, data in headers or ()])


def test_java_reads_our_batches_and_we_read_javas(kafka_jars: str, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    levels = [(codec, None) for codec in CODECS.values()] + [(LZ4, 9)]
    ours.write_bytes(
        b"".join(COMPILED.encode_batch(ROWS, codec=codec, level=level, base_offset=7) for codec, level in levels)
    )
    source = tmp_path / "Strangers.java"
    source.write_text(PROGRAM)
    done = subprocess.run(
        ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", kafka_jars, source, ours, theirs],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [line(codec, 7 + i, row) for codec, _ in levels for i, row in enumerate(ROWS)]
    read = list(split_batches(theirs.read_bytes()))
    assert len(read) == len(CODECS)
    for batch in read:
        records = COMPILED.decode_batch(batch)
        assert [(r.key, r.value, r.timestamp, list(r.headers) or None) for r in records] == ROWS
