"""`duogp serve` as a process: loopback, and an end that answers everything it has received."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import numpy as np
import pytest

import duogp

pytest.importorskip("uvicorn")
START = "from duogp.cli import main; main()"


@contextmanager
def service(folder, *options):
    """The process and its address."""
    command = [sys.executable, "-c", START, "serve", str(folder), "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        for line in process.stderr:
            if found := re.search(r"at (http://\S+)", line):
                yield process, found[1]
                break
        else:
            pytest.fail("the service did not start")
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(60)


def post(address, rows):
    """The answer, and whether the service asks to close the connection."""
    body = json.dumps({"rows": rows}).encode()
    request = urllib.request.Request(f"{address}/predict", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    gp = duogp.fit(X, np.sin(X[:, 0]), "svgp", num_inducing=10, epochs=5)
    gp.save(path := tmp_path_factory.mktemp("served") / "model")
    return path


def test_nothing_that_was_received_is_lost_on_sigterm(folder):
    answers, lost, rows = [], [], np.random.default_rng(1).normal(size=(2000, 2)).tolist()
    expected = duogp.load(folder).predict(np.array(rows)).mean
    with service(folder, "--drain", "3") as (process, address):
        assert address.startswith("http://127.0.0.1:")
        stop, begun = threading.Event(), threading.Semaphore(0)

        def client():
            while not stop.is_set():
                begun.release()
                try:
                    answers.append(post(address, rows)["predictions"]["mean"])
                except (urllib.error.URLError, OSError) as error:
                    lost.append(error)
                    return

        threads = [threading.Thread(target=client) for _ in range(6)]
        for thread in threads:
            thread.start()
        for _ in range(20):  # so many requests have been sent, six of them not yet answered
            begun.acquire()
        process.send_signal(signal.SIGTERM)
        stop.set()
        for thread in threads:
            thread.join(120)
        assert process.wait(120) == 0
    assert not lost and len(answers) >= 20
    for answer in answers:
        np.testing.assert_allclose(answer, expected, rtol=1e-9)


def test_an_interrupt_ends_it_too_and_a_folder_that_is_none_is_refused(folder, tmp_path):
    with service(folder) as (process, address):
        assert len(post(address, [[0.0, 0.0]])["predictions"]["mean"]) == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    command = [sys.executable, "-c", START, "serve", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "no model folder" in done.stderr
