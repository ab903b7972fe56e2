"""Facts on their way from a node to a verdict; the node is this machine, and `ssh` a program of the test's own."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge.errors import ConfigError
from glmforge.runtime.ssh import Ssh
from glmforge_ops.health.checks.check import Check, Context, Level, Session
from glmforge_ops.health.checks.equal import compare_values
from glmforge_ops.health.checks.examine import REACH, examine
from glmforge_ops.health.checks.facts import FactError, Facts
from glmforge_ops.health.checks.outcome import Outcome, Status, failed, passed
from glmforge_ops.health.checks.probe import PROGRAM, ask_for_facts
from glmforge_ops.health.checks.registry import CHECKS, choose_checks
from glmforge_ops.health.checks.report import Group, as_json, exit_status, grouped
from glmforge_ops.health.checks.thresholds import Thresholds, threshold_table
from glmforge_ops.hosts.fanout import Fanout
from glmforge_ops.hosts.on_node.wire import MARK
from helpers.ranks import PATIENCE_S, is_running, until

CONTEXT = Context(ClusterConfig(), Thresholds())


def judge(facts: Facts, context: Context) -> Outcome:
    return passed(f"{facts.number('open_files')}") if facts.number("open_files") else failed("none", "some", "raise it")


CHECK = Check("limits.some", "there are any", Level.QUICK, "limits", judge=judge)


def ssh_that(tmp_path: Path, script: str) -> Fanout:
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Fanout(Ssh((str(program),)))


def statuses(findings: Mapping[str, Outcome]) -> dict[str, str]:
    return {host: outcome.status.value for host, outcome in findings.items()}


def test_this_machine_answers() -> None:
    findings = examine(["localhost"], [CHECK], CONTEXT, Fanout())
    assert statuses(findings.outcomes[REACH]) == {"localhost": "pass"}
    assert statuses(findings.outcomes["limits.some"]) == {"localhost": "pass"}
    assert exit_status(findings) == 0
    assert as_json(findings)["checks"]["limits.some"]["localhost"]["status"] == "pass"


def test_a_node_that_is_not_reached_is_never_passed(tmp_path: Path) -> None:
    fanout = ssh_that(tmp_path, 'echo "ssh: connect to host: Connection refused" >&2; exit 255')
    findings = examine(["localhost", "node1"], [CHECK], CONTEXT, fanout)
    assert statuses(findings.outcomes[REACH]) == {"localhost": "pass", "node1": "fail"}
    assert statuses(findings.outcomes["limits.some"]) == {"localhost": "pass", "node1": "skipped"}
    assert exit_status(findings) == 1


def answer(text: str) -> str:
    return MARK.decode() + text


def facts_line(**probes: object) -> str:
    return answer(json.dumps(probes))


@pytest.mark.parametrize(
    ("printed", "failing", "reason"),
    [
        ("hello", REACH, "gave no answer"),
        (answer(""), REACH, "not valid JSON"),
        (answer("{"), REACH, "not valid JSON"),
        (answer("[" * 5000), REACH, "answer"),
        (answer("[]"), REACH, "must hold one JSON object"),
        (facts_line(), CHECK.name, "no answer"),
        (facts_line(limits={"facts": []}), CHECK.name, "nothing is known"),
        (facts_line(limits={"error": "OSError: no"}), CHECK.name, "OSError: no"),
        (facts_line(limits={"facts": {}}), CHECK.name, "open_files is missing"),
        (facts_line(limits={"facts": {"open_files": "many"}}), CHECK.name, "not a number"),
        (facts_line(limits={"facts": {"open_files": True}}), CHECK.name, "not a number"),
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


def test_a_probe_that_hangs_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {
        "hangs": "import time\ndef gather(cluster):\n    time.sleep(1000)",
        "breaks": "def gather(cluster):\n    return 1 / 0",
        "dies": "import os\ndef gather(cluster):\n    os._exit(1)",
        "talks": "def gather(cluster):\n    print('x' * 100000)\n    return {'name': cluster['name']}",
    }
    monkeypatch.setattr("glmforge_ops.health.checks.probe._source", sources.__getitem__)

    def name_of(facts: Facts, context: Context) -> Outcome:
        return passed(facts.text("name") or "")

    checks = [Check(f"x.{name}", "", Level.QUICK, name, judge=name_of) for name in sources]
    context = Context(ClusterConfig(name="mine"), Thresholds())
    findings = examine(["localhost"], checks, context, Fanout(), probe_limit_s=3)
    values = {name: of_hosts["localhost"].value for name, of_hosts in findings.outcomes.items()}
    assert "no answer within 3 s" in values["x.hangs"]
    assert "ZeroDivisionError" in values["x.breaks"]
    assert "ended without an answer" in values["x.dies"]
    assert values["x.talks"] == "mine"


def values_of(monkeypatch: pytest.MonkeyPatch, sources: Mapping[str, str], limit_s: float) -> dict[str, str]:
    """What probes of these sources tell: each a `value`."""
    monkeypatch.setattr("glmforge_ops.health.checks.probe._source", sources.__getitem__)

    def value_of(facts: Facts, context: Context) -> Outcome:
        return passed(facts.text("value") or "")

    checks = [Check(f"x.{name}", "", Level.QUICK, name, judge=value_of) for name in sources]
    findings = examine(["localhost"], checks, CONTEXT, Fanout(), probe_limit_s=limit_s)
    return {name: findings.outcomes[f"x.{name}"]["localhost"].value for name in sources}


def test_probes_that_wait_for_each_other_all_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    waits = """
import os, time
def gather(cluster):
    open({own!r}, "w").close()
    while not os.path.exists({other!r}):
        time.sleep(0.01)
    return {{"value": "met"}}
"""
    names = [str(tmp_path / name) for name in "abcd"]
    sources = {
        Path(own).name: waits.format(own=own, other=other)
        for own, other in zip(names, [*names[1:], names[0]], strict=True)
    }
    assert set(values_of(monkeypatch, sources, limit_s=60).values()) == {"met"}


def test_after_one_that_dies_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    dies = "import os\ndef gather(cluster):\n    os._exit(1)"
    talks = "import os\ndef gather(cluster):\n    return {'value': 'x' * 300000}"
    values = values_of(monkeypatch, {"a": dies, "b": talks, "c": dies, "d": talks}, limit_s=60)
    assert ["ended without an answer" in values[name] for name in "abcd"] == [True, False, True, False]


def test_nothing_goes_on_when_nobody_waits_for_it(tmp_path: Path) -> None:
    """Whoever has asked was killed: standard input ends, as through ssh."""
    pids = tmp_path / "pids"
    probe = f"""
import os, subprocess
def gather(cluster):
    children = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    open({str(pids)!r} + ".part", "w").write(" ".join(str(each.pid) for each in children))
    os.rename({str(pids)!r} + ".part", {str(pids)!r})
    children[0].wait()
"""
    order = {"shared": {}, "probes": {"job": probe}, "function": "gather", "cluster": {}, "limit_s": 1000}
    node = subprocess.Popen(PROGRAM.words("localhost"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert node.stdin is not None
    node.stdin.write(PROGRAM.sent(order))
    node.stdin.flush()
    until(pids.exists, "the probe's programs")
    started = [int(pid) for pid in pids.read_text().split()]
    assert all(map(is_running, started))
    node.stdin.close()
    assert node.wait(PATIENCE_S) == 1
    until(lambda: not any(map(is_running, started)), "their end")


def test_what_a_configuration_holds_stays_data() -> None:
    cluster = ClusterConfig.model_validate({"local_path": '/a\'"\\\n); import os; os.abort(); ("', "python": "\u2028"})
    bundle, order = PROGRAM.sent(), ask_for_facts(["limits"], cluster, 1.0)
    assert order.startswith(bundle), "the program is the same whatever the configuration holds"
    assert order.count(b"\n") == bundle.count(b"\n") + 1
    findings = examine(["localhost"], [CHECK], Context(cluster, Thresholds()), Fanout())
    assert findings.outcomes[CHECK.name]["localhost"].status is Status.PASS


def test_a_check_that_acts_gets_who_answered(tmp_path: Path) -> None:
    seen: list[str] = []

    def act(session: Session) -> Mapping[str, Outcome]:
        seen.extend(session.hosts)
        return {}

    fanout = ssh_that(tmp_path, "exit 255")
    told: list[str] = []
    checks = [Check("a.b", "", Level.QUICK, act=act)]
    findings = examine(
        ["node1", "localhost"], checks, CONTEXT, fanout, progress=lambda done, what: told.append(f"{done:g} {what}")
    )
    assert told == ["1 1 of 2 nodes have answered", "2 2 of 2 nodes have answered", "2 a.b on 1 nodes"]
    assert seen == ["localhost"]
    assert statuses(findings.outcomes["a.b"]) == {"node1": "skipped", "localhost": "skipped"}


def test_the_few_that_differ_are_named() -> None:
    values = {"a": "2.11", "b": "2.11", "c": "2.12"}
    assert statuses(compare_values(values, "torch", "install {expected}")) == {"a": "pass", "b": "pass", "c": "fail"}
    assert compare_values(values, "torch", "install {expected}")["c"].mend == "install 2.11"
    assert statuses(compare_values(values, "torch", "", expected="2.12")) == {"a": "fail", "b": "fail", "c": "pass"}
    assert statuses(compare_values({"a": "1", "b": "2"}, "torch", "")) == {"a": "fail", "b": "fail"}
    assert compare_values({}, "torch", "") == {}


def test_facts_are_of_their_types() -> None:
    facts = Facts({"n": 1.5, "t": "a\nb", "f": False, "l": ["a"], "o": {"n": 1}, "e": [{"n": 2}], "none": None})
    assert (facts.number("n"), facts.text("t"), facts.flag("f")) == (1.5, "'a\\nb'", False)
    assert (facts.texts("l"), facts.texts("none"), facts.each("none")) == (["a"], [], [])
    inner = facts.inner("o")
    assert inner is not None
    assert (inner.number("n"), facts.each("e")[0].number("n")) == (1, 2)
    for getter in (facts.number, facts.text, facts.flag, facts.texts, facts.inner, facts.each):
        wrong = "t" if getter != facts.text else "n"
        with pytest.raises(FactError):
            getter(wrong)
        with pytest.raises(FactError, match="missing"):
            getter("no such")


def test_checks_are_chosen_by_name_subject_and_level() -> None:
    assert [check.name for check in choose_checks(Level.QUICK, only=["limits.files"])] == ["limits.files"]
    assert {check.name.split(".")[0] for check in choose_checks(Level.QUICK, only=["limits"])} == {"limits"}
    assert choose_checks(Level.QUICK, only=["reach"]) == []
    assert "limits.files" not in {check.name for check in choose_checks(Level.THOROUGH, skip=["limits"])}
    assert {check.level for check in choose_checks(Level.QUICK)} == {Level.QUICK}
    with pytest.raises(ConfigError, match=r"did you mean 'limits\.files'"):
        choose_checks(Level.QUICK, only=["limit.files"])


def test_every_check_has_a_name_and_a_sentence() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for check in CHECKS:
        assert check.name.count(".") == 1, check.name
        assert check.about, check.name


def test_every_limit_tells_its_source() -> None:
    for name, rows in threshold_table().items():
        for row in rows:
            assert row.source, name
            assert row.unit, name
            assert row.about, name


def test_a_limit_of_the_users_own_wins() -> None:
    assert Thresholds().get("fd-limit").value == 65536
    own = Thresholds({"fd-limit": 10}).get("fd-limit")
    assert (own.value, own.source) == (10, "cluster.yaml")
    with pytest.raises(ConfigError, match="did you mean 'fd-limit'"):
        Thresholds({"fd-limits": 1})


def test_a_thousand_nodes_with_the_same_trouble_are_one_line() -> None:
    of_hosts = {f"n{number}": failed(f"{number} GB", "at least 2000 GB", "free some") for number in range(1000)}
    of_hosts["good"] = passed("3000 GB", "at least 2000 GB")
    bad, good = grouped(of_hosts)
    assert (bad.status, bad.value, len(bad.hosts)) == (Status.FAIL, "0 GB, 1 GB, 2 GB and 997 other values", 1000)
    assert good == Group(Status.PASS, ("3000 GB",), "at least 2000 GB", "", ("good",))
