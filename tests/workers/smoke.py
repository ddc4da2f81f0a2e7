"""What an installed fencepost must be able to do, with nothing but itself: run by the Python that has it.

    python smoke.py

Starts `fencepost serve` on a free port, produces, consumes and owns through the command line and through the API, and
prints a line of JSON: which kernel runs, what was found, how long `import fencepost` took. Needs the standard library
only, and nothing of the checkout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path

FENCEPOST = Path(sysconfig.get_path("scripts")) / "fencepost"


def run(*arguments: str, servers: str, given: str = "") -> str:
    done = subprocess.run(
        [FENCEPOST, *arguments],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FENCEPOST_SERVERS": servers},
    )
    if done.returncode:
        raise SystemExit(f"fencepost {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def import_milliseconds() -> float:
    program = "import time; t = time.perf_counter(); import fencepost; print((time.perf_counter() - t) * 1000)"
    return min(float(subprocess.check_output([sys.executable, "-c", program])) for _ in range(5))


def main() -> None:
    serve = subprocess.Popen(
        [FENCEPOST, "serve", "--ephemeral", "--listen", "127.0.0.1:0", "--json"], stdout=subprocess.PIPE, text=True
    )
    assert serve.stdout is not None
    try:
        servers = json.loads(serve.stdout.readline())["address"]
        run("produce", "numbers", servers=servers, given="".join(f"{number}\n" for number in range(1000)))
        lines = run("consume", "numbers", servers=servers).split()
        token = run("own", "jobs", "it", "--", "sh", "-c", "echo $FENCEPOST_TOKEN", servers=servers)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            import fencepost
            from fencepost.kernel import IMPLEMENTATION

            with fencepost.Producer(servers, compression="lz4") as producer:
                offset = producer.send("more", b"value", key=b"key").result(60).offset
            with fencepost.Reader(servers, "more", start="earliest", stop="latest") as reader:
                values = [(record.key or b"").decode() + "=" + (record.value or b"").decode() for record in reader]
        found = {
            "kernel": IMPLEMENTATION,
            "warnings": [str(one.message) for one in said],
            "where": str(Path(fencepost.__file__).parent),
            "numbers": lines == [str(number) for number in range(1000)],
            "token": int(token),
            "offset": int(offset),
            "values": values,
            "python": sys.version.split()[0],
            "import_ms": round(import_milliseconds(), 1),
        }
    finally:
        serve.terminate()
        serve.wait(60)
        serve.stdout.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
