"""Facts on their way from a node to a verdict; the node is this machine, and `ssh` a program of the test's own."""

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge.errors import ConfigError
from glmforge.runtime.ssh import Ssh
from glmforge_ops.health.checks import examine as examine_module
from glmforge_ops.health.checks.check import (
    Check,
    Context,
    Level,
    Outcome,
    Session,
    Status,
    equal_values,
    failed,
    passed,
    rule,
    together,
)
from glmforge_ops.health.checks.examine import (
    CHECKS,
    PROGRAM,
    REACH,
    Group,
    as_json,
    choose_checks,
    examine,
    exit_status,
    grouped,
)
from glmforge_ops.health.checks.machine import limits, skew
from glmforge_ops.health.checks.thresholds import Thresholds, threshold_table
from glmforge_ops.hosts.fanout import Fanout
from glmforge_ops.hosts.on_node.wire import MARK
from glmforge_ops.hosts.remote_program import WIRE, source_of
from helpers.ranks import PATIENCE_S, is_running, until

CONTEXT = Context(ClusterConfig(), Thresholds())
PACKAGE = "glmforge_ops.health.checks"


def new_check(name: str, **given: object) -> Check:
    """A rule that is not among those of the command."""
    rule(name, "quick", fix="raise it", about="", **given)  # type: ignore[arg-type]
    return CHECKS.pop()


CHECK = new_check("limits.some", gather=limits, read="files", least="gpu-settings", bad=failed)


def ssh_that(tmp_path: Path, script: str) -> Fanout:
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Fanout(Ssh((str(program),)))


def statuses(findings: Mapping[str, Outcome]) -> dict[str, str]:
    return {host: outcome.status.value for host, outcome in findings.items()}


def test_a_node_that_is_not_reached_is_never_passed(tmp_path: Path) -> None:
    fanout = ssh_that(tmp_path, 'echo "ssh: connect to host: Connection refused" >&2; exit 255')
    findings = examine(["localhost", "node1"], [CHECK], CONTEXT, fanout)
    assert statuses(findings.outcomes[REACH]) == {"localhost": "pass", "node1": "fail"}
    assert statuses(findings.outcomes["limits.some"]) == {"localhost": "pass", "node1": "skipped"}
    assert as_json(findings)["checks"]["limits.some"]["localhost"]["status"] == "pass"
    assert exit_status(findings) == 1


def answer(text: str) -> str:
    return MARK.decode() + text


def facts_line(*answers: object) -> str:
    return answer(json.dumps({"answers": answers, "times": [1.0, 2.0]}))


@pytest.mark.parametrize(
    ("printed", "failing", "reason"),
    [
        ("hello", REACH, "gave no answer"),
        (answer("{"), REACH, "not valid JSON"),
        (answer("[" * 5000), REACH, "answer"),
        (facts_line(), CHECK.name, "no answer"),
        (answer("{}"), CHECK.name, "no answer"),
        (facts_line({"facts": []}), CHECK.name, "no usable answer"),
        (facts_line({"error": "OSError: no"}), CHECK.name, "OSError: no"),
        (facts_line({"error": "\x1b[31m"}), CHECK.name, "\\x1b[31m"),
        (facts_line({"facts": {}}), CHECK.name, "'files'"),
        (facts_line({"facts": {"files": "many"}}), CHECK.name, "TypeError"),
    ],
)
def test_an_answer_that_is_none_fails_that_node(tmp_path: Path, printed: str, failing: str, reason: str) -> None:
    (tmp_path / "answer").write_text(f"welcome to this node\n{printed}\n")
    fanout = ssh_that(tmp_path, f"head -n 3 >/dev/null; cat {tmp_path}/answer")
    findings = examine(["localhost", "node1"], [CHECK], CONTEXT, fanout)
    outcome = findings.outcomes[failing]["node1"]
    assert outcome.status is Status.FAIL
    assert reason in outcome.value
    assert findings.outcomes[failing]["localhost"].status is Status.PASS


@pytest.fixture
def gathering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Check]]:
    """Checks of the values that functions of a made-up module gather, one for each."""

    def make(source: str) -> list[Check]:
        (tmp_path / "made_up.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "made_up", raising=False)
        module = importlib.import_module("made_up")
        monkeypatch.setattr(examine_module, "_MODULES", [*examine_module._MODULES, "made_up"])
        monkeypatch.setattr(examine_module, "source_of", lambda name: source if name == "made_up" else source_of(name))
        functions = [value for value in vars(module).values() if callable(value)]
        return [
            new_check(f"x.{each.__name__}", gather=each, read="value", want="met", bad=failed) for each in functions
        ]

    return make


def test_a_function_that_hangs_or_dies_costs_the_others_nothing(
    gathering: Callable[[str], list[Check]], tmp_path: Path
) -> None:
    source = f"""
import os, time
def hangs(cluster):
    open("{tmp_path}/pid", "w").write(str(os.getpid()))
    time.sleep(1000)
def breaks(cluster):
    return 1 / 0
def dies(cluster):
    os._exit(1)
def talks(cluster):
    print('x' * 100000)
    return {{"value": "met", "long": "y" * 300000}}
"""
    findings = examine(["localhost"], gathering(source), CONTEXT, Fanout(), limit_s=3)
    values = {name: of_hosts["localhost"].value for name, of_hosts in findings.outcomes.items()}
    assert "no answer within 3 s" in values["x.hangs"]
    assert "ZeroDivisionError" in values["x.breaks"]
    assert "ended without an answer" in values["x.dies"]
    assert values["x.talks"] == "met"
    until(lambda: not is_running(int((tmp_path / "pid").read_text())), "the end of the one that hangs")


def test_functions_that_wait_for_each_other_all_answer(gathering: Callable[[str], list[Check]], tmp_path: Path) -> None:
    meet = """
def {own}(cluster):
    open("{directory}/{own}", "w").close()
    while not os.path.exists("{directory}/{other}"):
        time.sleep(0.01)
    return {{"value": "met"}}
"""
    pairs = zip("abcd", "bcda", strict=True)
    source = "import os, time\n" + "".join(meet.format(own=a, other=b, directory=tmp_path) for a, b in pairs)
    findings = examine(["localhost"], gathering(source), CONTEXT, Fanout(), limit_s=60)
    assert {of_hosts["localhost"].status for of_hosts in findings.outcomes.values()} == {Status.PASS}


def test_nothing_goes_on_when_nobody_waits_for_it(tmp_path: Path) -> None:
    """Whoever has asked was killed: standard input ends, as through ssh."""
    pids = tmp_path / "pids"
    source = f"""
import os, subprocess
def gather(cluster):
    children = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    open({str(pids)!r} + ".part", "w").write(" ".join(str(each.pid) for each in children))
    os.rename({str(pids)!r} + ".part", {str(pids)!r})
    children[0].wait()
"""
    order = {"modules": [("made_up", source)], "calls": [("made_up", "gather")], "cluster": {}, "limit_s": 1000}
    node = subprocess.Popen(["sh", "-c", PROGRAM.script("localhost")], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert node.stdin is not None
    node.stdin.write(PROGRAM.sent(order))
    node.stdin.flush()
    until(pids.exists, "the programs")
    started = [int(pid) for pid in pids.read_text().split()]
    assert all(map(is_running, started))
    node.stdin.close()
    assert node.wait(PATIENCE_S) == 1
    until(lambda: not any(map(is_running, started)), "their end")


@pytest.mark.parametrize("name", [*PROGRAM.modules, *examine_module._MODULES])
def test_what_goes_to_a_node_needs_the_standard_library_and_what_goes_with_it(name: str) -> None:
    known = {WIRE, *PROGRAM.modules, *examine_module._MODULES}
    for statement in ast.parse(source_of(name)).body:
        imported = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
        if isinstance(statement, ast.ImportFrom):
            imported = [statement.module or ""]
        for module in imported:
            assert module.split(".")[0] in sys.stdlib_module_names or module in known, module


def test_what_a_configuration_holds_stays_data() -> None:
    cluster = ClusterConfig.model_validate({"local_path": "/a'\"); import os; os.abort(); (", "python": "\u2028"})
    findings = examine(["localhost"], [CHECK], Context(cluster, Thresholds()), Fanout())
    assert findings.outcomes[CHECK.name]["localhost"].status is Status.PASS


def test_a_check_that_acts_gets_who_answered(tmp_path: Path) -> None:
    seen: list[str] = []

    def act(session: Session) -> Mapping[str, Outcome]:
        seen.extend(session.hosts)
        return {}

    told: list[str] = []
    findings = examine(
        ["node1", "localhost"],
        [Check("a.b", "", Level.QUICK, None, act)],
        CONTEXT,
        ssh_that(tmp_path, "exit 255"),
        progress=lambda done, what: told.append(f"{done:g} {what}"),
    )
    assert told == ["1 1 of 2 nodes have answered", "2 2 of 2 nodes have answered", "2 a.b on 1 nodes"]
    assert seen == ["localhost"]
    assert statuses(findings.outcomes["a.b"]) == {"node1": "skipped", "localhost": "skipped"}


def test_the_few_that_differ_are_named() -> None:
    values = {"a": "2.11", "b": "2.11", "c": "2.12"}
    assert statuses(equal_values(values, "install {expected}")) == {"a": "pass", "b": "pass", "c": "fail"}
    assert equal_values(values, "install {expected}")["c"].fix == "install 2.11"
    assert statuses(equal_values(values, "", expected="2.12")) == {"a": "fail", "b": "fail", "c": "pass"}
    assert statuses(equal_values({"a": "1", "b": "2"}, "")) == {"a": "fail", "b": "fail"}
    assert equal_values({}, "") == {}


def test_of_several_things_the_worst_decides_and_all_such_are_named() -> None:
    parts = {"GPU 0": passed("1"), "GPU 1": failed("9", "0", "reset"), "GPU 2": failed("9", "0", "reset")}
    assert together(parts, "none") == failed("GPU 1, GPU 2: 9", "0", "reset")
    assert together({}, "none").value == "none"


@pytest.mark.parametrize(
    ("offsets", "login_s", "ours", "expected"),
    [
        ((0.0, 0.1, -0.1), 0.5, 0.0, ["pass", "pass", "pass"]),
        ((0.0, 0.0, -60.0, 0.0), 0.5, 0.0, ["pass", "pass", "fail", "pass"]),
        ((7200.0,), 0.5, 0.0, ["fail"]),
        ((0.0, 0.0, 0.0, 50.0), 0.5, 300.0, ["pass", "pass", "pass", "fail"]),  # our own clock is the wrong one
        ((0.0, 0.0, 0.0, -60.0), 10.0, 0.0, ["skipped", "skipped", "skipped", "fail"]),  # a slow login
    ],
)
def test_a_clock_off_from_most_is_found(
    offsets: tuple[float, ...], login_s: float, ours: float, expected: list[str]
) -> None:
    bounds = {f"n{index}": (offset - ours - 0.1, offset - ours + login_s) for index, offset in enumerate(offsets)}
    outcomes = skew(bounds, CONTEXT)
    assert list(statuses(outcomes).values()) == expected


def test_checks_are_chosen_by_name_subject_and_level() -> None:
    assert [check.name for check in choose_checks(Level.QUICK, only=["limits.files"])] == ["limits.files"]
    assert {check.name.split(".")[0] for check in choose_checks(Level.QUICK, only=["limits"])} == {"limits"}
    assert choose_checks(Level.QUICK, only=["reach"]) == []
    assert "limits.files" not in {check.name for check in choose_checks(Level.THOROUGH, skip=["limits"])}
    assert {check.level for check in choose_checks(Level.QUICK)} == {Level.QUICK}
    with pytest.raises(ConfigError, match=r"did you mean 'limits\.files'"):
        choose_checks(Level.QUICK, only=["limit.files"])


def test_every_check_and_limit_explains_itself() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(check.about for check in CHECKS)
    assert all(row.source and row.unit and row.about for rows in threshold_table().values() for row in rows)


def test_a_limit_of_the_users_own_wins() -> None:
    assert CONTEXT.limit("fd-limit") == 65536
    own = Thresholds({"fd-limit": 10}).find("fd-limit")
    assert own is not None
    assert (own.value, own.source) == (10, "cluster.yaml")
    with pytest.raises(ConfigError, match="did you mean 'fd-limit'"):
        Thresholds({"fd-limits": 1})


def test_a_thousand_nodes_with_the_same_trouble_are_one_line() -> None:
    of_hosts = {f"n{number}": failed(f"{number} GB", "at least 2000 GB", "free some") for number in range(1000)}
    of_hosts["good"] = passed("3000 GB", "at least 2000 GB")
    bad, good = grouped(of_hosts)
    assert (bad.status, bad.value, len(bad.hosts)) == (Status.FAIL, "0 GB, 1 GB, 2 GB and 997 other values", 1000)
    assert good == Group(Status.PASS, "3000 GB", "at least 2000 GB", "", ("good",))
