"""Studies of programs: values of their output, no injection, failures, time limits, kill and resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from duogp import cli
from duogp.bo import Categorical, Integer, Real, Space, Study
from duogp.bo.studies import programs
from duogp.bo.studies.goals import Goals
from duogp.bo.studies.programs import Command, run_program, value_of_output
from duogp.bo.studies.report import importances, page, write_report
from helpers.devices import environment_without_gpu

SPACE = Space(
    {
        "x": Real(-1, 1),
        "n": Integer(1, 4),
        "kind": Categorical(["a b", "$(touch hacked); `touch hacked` '\"&|>"]),
        "m": Real(0, 1, when={"kind": "a b"}),
    }
)
ONE = Goals.of("minimise")


def script(folder: Path, body: str) -> str:
    """A command that runs Python code with the arguments behind it."""
    path = folder / "program.py"
    path.write_text("import json, os, sys, time\n" + body)
    return f"'{sys.executable}' '{path}'"


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    monkeypatch.setattr(programs, "POLL", 0.01)
    monkeypatch.setattr(programs, "GRACE", 0.5)


# -- the command ---------------------------------------------------------------------------------------------


def test_values_stay_inside_their_argument():
    command = Command("echo --x={x} -n {n} 'kind is {kind}' {{n}} -m {m} --m={m} last", SPACE)
    wild = SPACE.parameters["kind"].categories[1]
    assert command.arguments({"x": -0.5, "n": 3, "kind": wild}) == [
        *("echo", "--x=-0.5", "-n", "3", f"kind is {wild}", "{n}", "last")
    ]
    with_m = command.arguments({"x": 1e-7, "n": 3, "kind": "a b", "m": 0.25})
    assert with_m[1] == "--x=1e-07" and with_m[-4:] == ["-m", "0.25", "--m=0.25", "last"]
    assert command.unused == [] and Command("echo {x}", SPACE).unused == ["n", "kind", "m"]


def test_commands_that_cannot_be():
    for text, words in (("echo {y}", r"\{y\} is not a"), ("", "empty"), ("echo 'a", "quotation")):
        with pytest.raises(ValueError, match=words):
            Command(text, SPACE)
    with pytest.raises(FileNotFoundError, match=r"no program '\./nowhere'"):
        Command("./nowhere {x}", SPACE)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("loss 0.25\n", 0.25),
        ("epoch 1: 3.5\nfinal=-1.5e-3", -1.5e-3),
        ("1\n2\n\nbye\n", 2.0),
        ("accuracy: 97.5%", 97.5),
        ("+.5", 0.5),
        ('{"value": 3, "other": [1]}\ntook 17 s', {"value": 3.0}),
        ('{"loss": 3}\n4', 4.0),
        ("{broken\n7", 7.0),
        ("model-v2 v3.1.4 x86 1.0", 1.0),
    ],
)
def test_the_value_in_an_output(text, value):
    assert value_of_output(text, ONE) == value


def test_outputs_without_a_value():
    with pytest.raises(ValueError, match="no number"):
        value_of_output("done v2\n", ONE)
    several = Goals.of({"loss": "min", "time": "min"}, {"size": "<= 3"})
    with pytest.raises(ValueError, match="JSON object of loss, time, size"):
        value_of_output("1 2 3", several)
    assert value_of_output('{"loss": 1, "time": null, "size": 2}', several)["size"] == 2.0
    assert str(value_of_output("loss: nan", ONE)) == "nan"


# -- running -------------------------------------------------------------------------------------------------


def test_programs_run_with_their_point(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    body = """
point = json.loads(os.environ["DUOGP_POINT"])
assert float(sys.argv[1]) == point["x"] and sys.argv[2] == point["kind"], sys.argv
open(os.path.join(os.environ["DUOGP_RUN"], "trials", os.environ["DUOGP_TRIAL"] + ".seen"), "w").close()
print("noise 17"); print(point["x"] ** 2 + point["n"])
"""
    command = Command(script(tmp_path, body) + " {x} {kind}", SPACE)
    with Study(SPACE, direction="minimise", strategy="random", folder=tmp_path / "run") as study:
        ended = []
        run_program(study, command, evaluations=6, parallel=3, after=ended.append)
        assert len(study.done) == len(ended) == 6, [t.reason for t in study.trials]
        for trial in study.done:
            assert trial.values == {"value": pytest.approx(trial["x"] ** 2 + trial["n"])}
        assert len(list((tmp_path / "run" / "trials").glob("*.seen"))) == 6
        assert not list((tmp_path / "run" / "trials").glob("*.pid"))
    assert not (tmp_path / "hacked").exists() and not (tmp_path / "run" / "hacked").exists()


def time_is_up_when(monkeypatch, ready) -> None:
    """The time limit strikes when a job is ready for it, however slow this machine is."""
    monkeypatch.setattr(programs, "_is_over", lambda job, _: job.process.poll() is not None or ready(job))


def test_the_time_limit():
    class Sleeping:
        def poll(self) -> None:
            """It runs."""

    job = programs._Running(trial=None, process=Sleeping(), started=time.monotonic() - 10)
    assert (
        programs._is_over(job, 5.0) and not programs._is_over(job, 1e6) and not programs._is_over(job, None)
    )


def test_failures_of_programs(tmp_path, monkeypatch):
    body = """
n = int(sys.argv[1])
if n == 1: sys.exit("out of memory")
if n == 2: time.sleep(60)
if n == 3: print("no value at all"); sys.exit()
print(n)
"""
    space = Space({"n": Integer(1, 4)})
    start = [{"n": n} for n in (4, 1, 2, 3)]
    command = Command(script(tmp_path, body) + " {n}", space)
    time_is_up_when(monkeypatch, lambda job: job.trial["n"] == 2)
    with Study(space, initial=start, strategy="random", folder=tmp_path / "run") as study:
        run_program(study, command, evaluations=4, parallel=4, timeout=5.0)
        assert [t.state for t in study.trials] == ["done", "failed", "failed", "failed"]
        reasons = [t.reason for t in study.trials]
        assert reasons[1:] == [
            "exit status 1: out of memory",
            "timed out after 5 s",
            "the output has no number",
        ]


def test_a_program_that_never_succeeds_ends_the_run(tmp_path):
    command = Command(script(tmp_path, "sys.exit('no data')"), SPACE)
    with Study(SPACE, strategy="random", folder=tmp_path / "run") as study:
        with pytest.raises(
            RuntimeError, match=r"all 10 evaluations failed, the last: exit status 1: no data"
        ):
            run_program(study, command, evaluations=50, parallel=2)
        assert len(study) <= 12


def test_a_time_limit_ends_what_a_program_started(tmp_path, monkeypatch):
    body = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
child.wait()
"""
    command = Command(script(tmp_path, body), SPACE)
    printed = tmp_path / "run" / "trials" / "000000.stdout"
    time_is_up_when(monkeypatch, lambda job: printed.read_text().endswith("\n"))
    with Study(SPACE, strategy="random", folder=tmp_path / "run") as study:
        run_program(study, command, evaluations=1, timeout=3.0)
    pid = int(printed.read_text())
    for _ in range(100):
        if not _alive(pid):
            break
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- the command line ----------------------------------------------------------------------------------------


def call(*arguments: object):
    return CliRunner().invoke(cli.build(), [str(a) for a in arguments])


BODY = """
x, n = float(sys.argv[1]), int(sys.argv[2])
with open(sys.argv[3], "a") as file: file.write(f"{x!r} {n}\\n")
print(json.dumps({"value": (x - 0.3) ** 2 + abs(n - 3)}))
"""


def test_a_run_from_the_command_line(tmp_path):
    calls = tmp_path / "calls"
    common = (
        "bo",
        "--command",
        script(tmp_path, BODY) + f" {{x}} {{n}} '{calls}'",
        "--run",
        tmp_path / "run",
    )
    common += ("--param", "x=real(-1,1)", "--param", "n=int(1,8)", "--direction", "minimise")
    common += ("--method", "random", "--parallel", 2, "--timeout", 60)
    first = call(*common, "--evaluations", 6, "--json")
    assert first.exit_code == 0, first.output
    report = json.loads(first.stdout)
    assert report["done"] == 6 and report["failed"] == 0
    assert report["files"] == ["study.jsonl", "incumbent.png", "report.html"]
    second = call(*common, "--evaluations", 9)
    assert second.exit_code == 0, second.output
    assert "going on after 6 evaluations" in second.output and "9 done, 0 failed" in second.output
    lines = calls.read_text().splitlines()
    assert len(lines) == len(set(lines)) == 9  # nothing is evaluated twice
    text = (tmp_path / "run" / "report.html").read_text()
    assert text.count("<tr class=") == 9 and "<svg" in text and "What value depends on" in text
    assert "http" not in text.replace("http://www.w3.org", "")  # nothing from elsewhere


def test_a_space_in_a_file_several_objectives_and_limits(tmp_path):
    text = 'constraints = ["x + n <= 6"]\n[parameters]\nx = "real(-1, 1)"\nn = "int(1, 8)"\n'
    (tmp_path / "space.toml").write_text(text)
    body = "x, n = map(float, sys.argv[1:3]); print(json.dumps({'f': x, 'g': n, 'size': x + n}))"
    done = call(
        *("bo", "--command", script(tmp_path, body) + " {x} {n}", "--run", tmp_path / "run", "-n", 6),
        *("--space", tmp_path / "space.toml", "--method", "random", "--json"),
        *("--direction", "f=minimise", "--direction", "g=maximise", "--limit", "size <= 4"),
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["best"] and all(trial["values"]["size"] <= 4 for trial in report["best"])
    assert report["files"] == ["study.jsonl", "report.html"]


def test_mistakes_are_one_line(tmp_path):
    run = ("--run", tmp_path / "run")
    for arguments, words in (
        ((), "give a --command"),
        (("hartmann6", "--command", "echo 1"), "give a --command"),
        (("hartmann6", "--param", "x=real(0,1)"), "--param: only with --command"),
        (("--command", "echo 1"), "by --param, or by --space"),
        (("--command", "echo {y}", "-p", "x=real(0,1)"), "{y} is not a parameter"),
        (("--command", "echo {x}", "-p", "x=real(1,1)"), "lower bound must be below"),
        (("--command", "echo {x}", "-p", "x=real(0,1)", "--limit", "size"), "--limit takes"),
        (("--command", "echo {x}", "-p", "x=real(0,1)", "--direction", "up"), "'minimise' or 'maximise'"),
        (("--command", "echo {x}", "-p", "x=real(0,1)", "--parallel", 0), "parallel must be"),
    ):
        done = call("bo", *run, *arguments)
        assert done.exit_code == 2 and words in done.output, done.output


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_a_killed_run_goes_on_without_a_second_evaluation(tmp_path):
    """SIGKILL of `duogp bo` while two programs run: the same command again ends them and goes on."""
    calls = tmp_path / "calls"
    wait = "if len(open(sys.argv[3]).readlines()) > 4 and not os.path.exists(sys.argv[4]): time.sleep(60)"
    body = BODY.replace("print(", f"{wait}\nprint(")
    command = script(tmp_path, body) + f" {{x}} {{n}} '{calls}' '{tmp_path / 'go'}'"
    arguments = [
        *(
            "bo",
            "--command",
            command,
            "--run",
            str(tmp_path / "run"),
            "-p",
            "x=real(-1,1)",
            "-p",
            "n=int(1,8)",
        ),
        *("--direction", "minimise", "--method", "random", "-j", "2", "-n", "8"),
    ]
    environment = environment_without_gpu() | {"PYTHONPATH": os.pathsep.join(sys.path)}
    victim = subprocess.Popen(
        [sys.executable, "-c", "from duogp.cli import main; main()", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    pids = tmp_path / "run" / "trials"
    while time.monotonic() < deadline:
        if calls.exists() and len(calls.read_text().splitlines()) == 6 and len(list(pids.glob("*.pid"))) == 2:
            break
        time.sleep(0.05)
    running = [int(path.read_text().split()[0]) for path in pids.glob("*.pid")]
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert len(running) == 2 and all(map(_alive, running))
    (tmp_path / "go").touch()
    done = call(*arguments, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["resumed_after"] == 4 and report["done"] == 8
    assert not any(map(_alive, running))  # they were ended, and their trials evaluated again
    lines = calls.read_text().splitlines()
    assert len(lines) == 10 and len(set(lines)) == 8


# -- the report ----------------------------------------------------------------------------------------------


def test_a_report_escapes_what_it_shows(tmp_path):
    space = {"x": Real(0, 1), "<b>": Categorical(["<i>", "&"])}
    with Study(space, direction="minimise", strategy="random", folder=tmp_path / "run") as study:
        assert "<svg" not in page(study)  # nothing is known yet
        for trial in study.ask(8):
            if trial.number == 3:
                study.fail(trial, "<script>alert(1)</script>")
            else:
                study.tell(trial, 3 * trial["x"])
        text = write_report(study, title="a <title>").read_text()
        assert "<script>" not in text and "<i>" not in text and "<b>" not in text and "&lt;i&gt;" in text
        shares = importances(study)["value"]
        assert sum(shares.values()) == pytest.approx(1.0) and shares["x"] > shares["<b>"]


def test_the_report_of_several_objectives(tmp_path):
    with Study({"x": Real(0, 1)}, direction={"f": "min", "g": "max"}, strategy="random") as study:
        for trial in study.ask(3):
            study.tell(trial, [trial["x"], trial["x"]])
        assert "g against f" in page(study)
        with pytest.raises(ValueError, match="with a folder"):
            write_report(study)
