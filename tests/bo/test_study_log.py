"""Studies on disk: killed at any instant, on a full disk, in two processes: nothing told is lost."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from duogp.bo import Integer, Real, Study
from duogp.bo.studies.log import EVENTS, read_events
from helpers.devices import environment_without_gpu

BOX = {"x": Real(-2, 2), "n": Integer(0, 9)}


def study_in(folder, **options) -> Study:
    return Study(BOX, direction="minimise", strategy="random", folder=folder, **options)


def state(study: Study) -> list:
    return [(t.number, t.point, t.state, t.values, t.reason) for t in study.trials]


def test_a_study_is_gone_on_with(tmp_path):
    with study_in(tmp_path / "run") as first:
        trials = first.ask(3)
        first.tell(trials[1], 1.0)
        first.fail(trials[0], "broken")
        first.tell({"x": 0.5, "n": 3}, -1.0)
        before, expected = state(first), first.history()
    with study_in(tmp_path / "run") as again:
        assert state(again) == before
        assert [t.number for t in again.pending] == [2]
        assert (again.history().X == expected.X).all() and again.history().asked == 3
        following = again.ask(2)
    with study_in(tmp_path / "other") as whole:  # the same questions without a stop
        trials = whole.ask(3)
        whole.tell(trials[1], 1.0)
        whole.fail(trials[0], "broken")
        whole.tell({"x": 0.5, "n": 3}, -1.0)
        assert [t.point for t in whole.ask(2)] == [t.point for t in following]
    with Study.open(tmp_path / "run", strategy="random") as opened:
        assert len(opened) == 6 and opened.best.values == {"value": -1.0}


def test_results_that_come_after_a_stop_and_out_of_order(tmp_path):
    with study_in(tmp_path / "run") as first:
        trials = first.ask(4)
        first.tell(trials[2], 2.0)
        first.fail(trials[3], "no answer")
    with study_in(tmp_path / "run") as again:
        assert [t.number for t in again.pending] == [0, 1]
        new = again.ask(2)
        again.tell(new[1], 5.0)
        again.tell(again.trials[3], 3.0)  # after it had been given up
        again.tell(again.pending[1], 1.0)
    with study_in(tmp_path / "run") as last:
        assert [t.number for t in last.pending] == [0, 4]
        last.tell(last.pending[0], 0.0)
        assert [t.values and t.values["value"] for t in last.trials] == [0.0, 1.0, 2.0, 3.0, None, 5.0]
        asked = [tuple(t.point.values()) for t in last.trials]
        assert len(set(asked)) == 6  # nothing was proposed twice
    told = [e["tell"] for e in read_events(tmp_path / "run" / EVENTS)[1] if "tell" in e]
    assert sorted(told) == [0, 1, 2, 3, 5]


def test_a_file_cut_off_anywhere_is_read_up_to_its_last_whole_line(tmp_path):
    with study_in(tmp_path / "run") as study:
        for trial in study.ask(2):
            study.tell(trial, float(trial.number))
        study.fail(study.ask(), "ünïcode\nand lines")
    file = tmp_path / "run" / EVENTS
    data = file.read_bytes()
    header = data.index(b"\n") + 1
    events = data.count(b"\n") - 1
    seen = set()
    for cut in range(header, len(data) + 1):
        file.write_bytes(data[:cut])
        with study_in(tmp_path / "run") as again:
            found = file.read_bytes()
            assert data.startswith(found) and found.endswith(b"\n")
            seen.add(found.count(b"\n") - 1)
            if cut % 40 == 0:  # and goes on from there
                again.tell(again.ask(), 1.0)
                assert all(json.loads(line) for line in file.read_bytes().splitlines())
    assert seen == set(range(events + 1))


KILLED = """
import sys
from duogp.bo import Integer, Real, Study
space = {"x": Real(-2, 2), "n": Integer(0, 9)}
study = Study(space, direction="minimise", strategy="random", folder=sys.argv[1])
print("ready", flush=True)
while True:
    for trial in study.pending or study.ask(2):
        study.tell(trial, trial["x"])
        print(trial.number, flush=True)  # acknowledged
"""


def test_a_killed_process_loses_nothing_that_was_acknowledged(tmp_path):
    folder, acknowledged = tmp_path / "run", []
    for round_ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment_without_gpu() | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.stdout.readline() == "ready\n"
        for _ in range(5 + 3 * round_):
            acknowledged.append(int(process.stdout.readline()))
        process.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in process.stdout.read().split()]
        process.wait()
        assert len(acknowledged) == len(set(acknowledged))  # nothing is evaluated twice
        with study_in(folder) as study:
            for number in acknowledged:
                trial = study.trials[number]
                assert trial.values == {"value": trial["x"]}
    told = [e["tell"] for e in read_events(folder / EVENTS)[1] if "tell" in e]
    assert len(told) == len(set(told))


class FullDisk:
    """The file of a log on a disk with little room."""

    def __init__(self, file, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        part = bytes(data[: self.room])
        self.room -= len(part)
        return self.file.write(part)

    def __getattr__(self, name: str):
        return getattr(self.file, name)


def test_a_full_disk_is_a_clear_error_and_no_damage(tmp_path):
    given = [{"x": 0.0, "n": i} for i in range(3)]
    study = study_in(tmp_path / "run", initial=given)
    trials = study.ask(2)
    study.tell(trials[0], 1.0)
    before = (tmp_path / "run" / EVENTS).read_bytes()
    real = study._log._file
    for room in (0, 7):
        study._log._file = FullDisk(real, room)
        with pytest.raises(
            OSError, match=r"No space left.*What was told before is safe.*tell it again"
        ) as caught:
            study.tell(trials[1], 2.0)
        assert caught.value.errno == errno.ENOSPC
        with pytest.raises(OSError, match="could not be written"):
            study.ask()
        assert (tmp_path / "run" / EVENTS).read_bytes() == before
        assert trials[1].state == "pending" and len(study) == 2
    study._log._file = real  # there is room again
    study.tell(trials[1], 2.0)
    assert study.ask().point == given[2]  # which the failed questions did not use up
    study.close()
    with study_in(tmp_path / "run") as again:
        assert [t.values for t in again.trials] == [{"value": 1.0}, {"value": 2.0}, None]


LIMITED = """
import resource, signal, sys
from duogp.bo import Integer, Real, Study
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
space = {"x": Real(-2, 2), "n": Integer(0, 9)}
study = Study(space, direction="minimise", strategy="random", folder=sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
told = 0
try:
    while True:
        study.tell(study.ask(), 1.0)
        told += 1
except OSError as error:
    print(told, error.strerror)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="the system has no limits of file sizes")
def test_a_real_limit_of_the_file_system(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        env=environment_without_gpu() | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    told, _, words = done.stdout.partition(" ")
    assert "could not be written" in words
    with study_in(tmp_path / "run") as study:
        assert len(study.done) == int(told) > 2


def test_one_folder_one_writer(tmp_path):
    pytest.importorskip("fcntl")
    with study_in(tmp_path / "run"), pytest.raises(RuntimeError, match="another process"):
        study_in(tmp_path / "run")
    study_in(tmp_path / "run").close()


def test_other_folders(tmp_path):
    study_in(tmp_path / "run").close()
    with pytest.raises(ValueError, match=r"direction was.*minimise.*maximise"):
        Study(BOX, direction="maximise", folder=tmp_path / "run")
    with pytest.raises(ValueError, match="space was"):
        Study({"x": Real(-2, 3), "n": Integer(0, 9)}, direction="minimise", folder=tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="other things"):
        study_in(tmp_path / "other")
    with pytest.raises(FileNotFoundError, match="not the folder of a study"):
        Study.open(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    file = tmp_path / "run" / EVENTS
    file.write_bytes(file.read_bytes() + b"damage\n" + b'{"ask": 0, "point": {"x": 1.0, "n": 1}}\n')
    with pytest.raises(ValueError, match="line 2 is no JSON"):
        study_in(tmp_path / "run")


def test_threads_share_a_study(tmp_path):
    with study_in(tmp_path / "run") as study:

        def work() -> None:
            for _ in range(5):
                trial = study.ask()
                study.tell(trial, float(trial.number))

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        before = state(study)
    with study_in(tmp_path / "run") as again:
        assert state(again) == before and len(again.done) == 20
