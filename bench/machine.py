"""What the figures were measured on and with."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from bench import page_cache
from fencepost import kernel
from tests.support.kafka import VERSION as KAFKA_VERSION

_PACKAGES = (
    "fencepost",
    "uvloop",
    "kio",
    "cramjam",
    "crc32c",
    "confluent-kafka",
    "aiokafka",
    "kafka-python",
    "pyarrow",
)


def describe(*packages: str) -> dict[str, Any]:
    """`packages`: further ones, whose versions matter to the run."""
    return {
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": {
            "cpu": _processor(),
            "cores": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
            "system": f"{platform.system()} {platform.release()}",
            "load_before": round(os.getloadavg()[0], 2),
            "page_cache": "full" if page_cache.hands_memory_back() else "as it was",
        },
        "versions": {
            "Apache Kafka": KAFKA_VERSION,
            "Java": _java(),
            "Python": platform.python_version(),
            **{name: metadata.version(name) for name in (*_PACKAGES, *packages)},
            "kernel of fencepost": kernel.IMPLEMENTATION,
        },
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _java() -> str:
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    return said[1].strip() if len(said) > 1 else "?"
