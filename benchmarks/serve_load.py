"""Load test of `duogp serve`: latency, rows per second, and what an end by SIGTERM loses.

    python benchmarks/serve_load.py --seconds 20 --clients 1 8 32 --rows 1 100

A service of its own process answers clients of this one over keep-alive connections, each of which sends its
next request when it has the answer to the last. Clients take processor time too: on two cores they compete
with the service. The load average of the machine before and after the run stands beside the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np

import duogp

RESULTS = Path(__file__).parent / "results" / "serve_load.json"
START = "from duogp.cli import main; main()"


def fitted(folder: Path, method: str, rows: int, points: int) -> None:
    """A model of eight columns in a folder."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 8))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=rows)
    if method == "auto":
        duogp.GPRegressor(random_state=0).fit(X, y).save(folder)
    else:
        duogp.fit(X, y, method, num_inducing=points, epochs=20).save(folder)


def started(folder: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-c", START, "serve", str(folder), "--port", "0", "--drain", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"at (http://\S+)", line):
            return process, found[1]
    raise RuntimeError("the service did not start")


class Load:
    """Clients that ask until a time, and what they have seen."""

    def __init__(self, address: str, rows: int) -> None:
        values = np.random.default_rng(1).normal(size=(rows, 8)).tolist()
        self.address, self.rows = address, rows
        self.body = json.dumps({"rows": values}).encode()
        self.seconds: list[float] = []
        self.failed: list[str] = []
        self.stopping = False

    async def client(self, until: float) -> None:
        async with httpx.AsyncClient(timeout=120) as session:
            while time.perf_counter() < until and not self.stopping:
                begun = time.perf_counter()
                try:
                    answer = await session.post(
                        f"{self.address}/predict",
                        content=self.body,
                        headers={"content-type": "application/json"},
                    )
                except httpx.HTTPError as error:
                    self.failed.append(type(error).__name__)
                    return
                if answer.status_code != 200 or answer.json()["rows"] != self.rows:
                    self.failed.append(f"status {answer.status_code}")
                self.seconds.append(time.perf_counter() - begun)
                self.stopping |= answer.headers.get("connection") == "close"

    async def run(self, clients: int, seconds: float) -> None:
        until = time.perf_counter() + seconds
        await asyncio.gather(*(self.client(until) for _ in range(clients)))

    def report(self, clients: int, seconds: float) -> dict[str, object]:
        p50, p99 = np.quantile(self.seconds, [0.5, 0.99])
        return {
            "clients": clients,
            "rows_per_request": self.rows,
            "requests": len(self.seconds),
            "failed": len(self.failed),
            "p50_ms": round(1000 * float(p50), 2),
            "p99_ms": round(1000 * float(p99), 2),
            "requests_per_second": round(len(self.seconds) / seconds, 1),
            "rows_per_second": round(self.rows * len(self.seconds) / seconds, 1),
        }


async def ended_under_load(process: subprocess.Popen[str], address: str) -> dict[str, object]:
    """SIGTERM while sixteen clients ask; a request that was sent and not answered is lost."""
    load = Load(address, 100)
    clients = asyncio.create_task(load.run(16, 60))
    await asyncio.sleep(2)
    process.send_signal(signal.SIGTERM)
    await clients
    status = await asyncio.to_thread(process.wait, 120)
    return {
        "answered": len(load.seconds),
        "lost": len(load.failed),
        "kinds": load.failed,
        "exit_status": status,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--method", default="svgp")
    parser.add_argument("--train-rows", type=int, default=2000)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "model"
        fitted(folder, given.method, given.train_rows, given.points)
        process, address = started(folder)
        found = []
        try:
            asyncio.run(Load(address, 1).run(1, 1))  # the posterior is frozen at the first request
            for rows in given.rows:
                for clients in given.clients:
                    load, begun = Load(address, rows), time.perf_counter()
                    asyncio.run(load.run(clients, given.seconds))
                    found.append(load.report(clients, time.perf_counter() - begun))
                    print(found[-1], flush=True)
            end = asyncio.run(ended_under_load(process, address))
            print(end)
        finally:
            if process.poll() is None:
                process.kill()
    out = {
        "method": given.method,
        "inducing_points": given.points,
        "columns": 8,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average_before": [round(v, 2) for v in before],
        "load_average_after": [round(v, 2) for v in os.getloadavg()],
        "runs": found,
        "sigterm_under_load": end,
    }
    given.output.write_text(json.dumps(out, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
