"""Java's own clients, by the tools of Kafka's distribution: ProducerPerformance and ConsumerPerformance.

Both are a JVM that starts cold. The producer's rate is the one of the records after a quarter of warm-up; the
consumer's that of its fetching time, without the time it took to join its group.
"""

from __future__ import annotations

import re
import subprocess
import tempfile

from bench import payload
from bench.clients.cpu import Stopwatch
from bench.jobs import BATCH_BYTES, LINGER_MS, Fetch, Outcome, Produce
from tests.support.kafka import jars


def _run(tool: str, *arguments: str) -> str:
    command = ["java", "-Xmx1g", "-cp", f"{jars()}/*", f"org.apache.kafka.tools.{tool}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode != 0:
        raise SystemExit((done.stderr + done.stdout)[-1200:])
    return done.stdout


def encryption(authority: str | None) -> dict[str, object]:
    if authority is None:
        return {}
    return {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": authority}


def produce(job: Produce) -> Outcome:
    properties = {
        **encryption(job.authority),
        "acks": "all",
        "enable.idempotence": str(job.idempotent).lower(),
        "linger.ms": LINGER_MS,
        # A batch of Java's may come out larger than batch.size when it guesses its compression wrong.
        "batch.size": BATCH_BYTES // 2,
        "buffer.memory": 256 << 20,
        "max.request.size": 4 << 20,
        "compression.type": job.codec,
    }
    with tempfile.NamedTemporaryFile("wb", suffix=".txt") as rows:
        rows.write(b"\n".join(payload.values(job.size)))
        rows.flush()
        watch = Stopwatch(children=True)
        output = _run(
            "ProducerPerformance",
            *("--bootstrap-server", job.address, "--topic", job.topic, "--payload-file", rows.name),
            *("--num-records", str(job.records), "--warmup-records", str(job.records // 4), "--throughput", "-1"),
            *("--command-property", *(f"{name}={value}" for name, value in properties.items())),
        )
        _, cpu = watch.read()
    steady = [line for line in output.splitlines() if "steady state" in line]
    if not steady:
        raise SystemExit(f"ProducerPerformance said nothing of a steady state: {output[-600:]}")
    [rate, *_] = re.findall(r"([\d.]+) records/sec", steady[-1])
    return Outcome(records=job.records, seconds=job.records / float(rate), client_cpu=cpu)


def fetch(job: Fetch) -> Outcome:
    properties = {"check.crcs": "false", "max.poll.records": 10_000, **encryption(job.authority)}
    watch = Stopwatch(children=True)
    output = _run(
        "ConsumerPerformance",
        *("--bootstrap-server", job.address, "--topic", job.topic, "--num-records", str(job.records)),
        *("--timeout", "20000", "--hide-header", "--fetch-size", str(4 << 20)),
        *(argument for each in properties.items() for argument in ("--command-property", "{}={}".format(*each))),
    )
    _, cpu = watch.read()
    # start, end, MB, MB/s, records, records/s, ms of rebalancing, ms of fetching, …
    rows = [line.split(",") for line in output.splitlines() if line.count(",") >= 8]
    if not rows:
        raise SystemExit(output[-600:])
    records, fetching_ms = int(rows[-1][4]), int(rows[-1][7])
    if records < job.records:
        raise SystemExit(f"only {records} of {job.records} records came")
    return Outcome(records=records, seconds=fetching_ms / 1000, client_cpu=cpu)
