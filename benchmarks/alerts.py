"""Faults that reach a webhook: a real Prometheus with our rules, a real Alertmanager with our configuration.

    python benchmarks/alerts.py              every case of tests/helpers/alert_cases.py that takes up to 205 minutes
    python benchmarks/alerts.py --replay runs/demo runs/rl   and the records of finished runs, two hours of each

The cases that promtool checks minute by minute are played by an exporter side by side, each as a run, GPU, disk or
engine of its own. All windows, offsets and `for` of the rules, and Alertmanager's waits, are divided by 60, so that
a minute takes a second; thresholds stay. Each fault has to arrive, its end too, and what is no fault must not.
Records of finished runs are stretched to two hours and replayed by promtool: which alerts would have fired.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import ROOT, write_result

from glmforge_ops.monitor.rule_files import RULE_FILES, rule_text

sys.path.insert(0, str(ROOT / "tests"))

from helpers.alert_cases import CASES, ENDED, Case
from helpers.played import FACTOR, Played, Player
from helpers.prometheus_stack import Stack, Webhook, answering, stack
from helpers.promtool import alarms_of
from helpers.replayed import replayed

HOURS = 2.0
LONGEST = 205
"""Minutes of a case. One takes more: a run that has never saved in four hours."""
_TAIL = 20
"""Seconds after the last minute: resolved alerts wait for Alertmanager's interval."""


def measure(cases: list[Case]) -> dict[str, Any]:
    """Play all cases to their ends."""
    player = Player(cases)
    with tempfile.TemporaryDirectory() as place, stack(Path(place), factor=FACTOR) as servers:
        with answering(player.answer) as port:
            begin = time.monotonic()
            player.start()
            _play(player, servers, port, max(case.until for case in cases) + _TAIL)
        return _judge(player.played, servers.webhook, begin)


def _play(player: Player, servers: Stack, port: int, until: float) -> None:
    known: list[dict[str, Any]] = []
    while player.minute < until:
        if (targets := player.targets(port)) != known:
            servers.set_targets(targets)
            known = targets
        time.sleep(0.2)


def _judge(played: list[Played], webhook: Webhook, begin: float) -> dict[str, Any]:
    faults, wrong = [], []
    for one in played:
        case = one.case
        of_case = [(at - begin, status) for at, status, labels in webhook.received if _is_of(labels, one)]
        fired = next((at for at, status in of_case if status == "firing"), None)
        resolved = next((at for at, status in of_case if status == "resolved"), None)
        if case.fires is None:
            if fired is not None:
                wrong.append(f"{case.id}: reported after {fired:.1f} s, is no fault")
            continue
        if fired is None or resolved is None or fired < case.fires - 5 or resolved < fired:
            wrong.append(f"{case.id}: reported {fired}, resolved {resolved}, due in second {case.fires}")
            continue
        late = round(fired - case.fires, 1)
        faults.append(
            {"alert": case.alert, "fault": case.what, "due": case.fires, "webhook": round(fired, 1), "late": late}
        )
    late = sorted(fault["late"] for fault in faults)
    return {
        "factor": FACTOR,
        "played": len(played),
        "faults": len(faults),
        "silent": sum(one.case.fires is None for one in played) - sum("is no fault" in line for line in wrong),
        "late_median": statistics.median(late) if late else None,
        "late_max": late[-1] if late else None,
        "wrong": wrong,
        "table": faults,
    }


def replay(run: Path) -> list[str]:
    """Alerts that the records of a run raise if they come within two hours."""
    with tempfile.TemporaryDirectory() as place:
        rules = {name: rule_text(name) for name in RULE_FILES}
        return alarms_of(replayed(run, HOURS), rules, Path(place))


def _is_of(labels: dict[str, str], one: Played) -> bool:
    return labels["alertname"] == one.case.alert and any(value.startswith(f"{one.mark}-") for value in labels.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/alerts.json")
    parser.add_argument("--replay", type=Path, nargs="*", default=[], metavar="RUN", help="directories of runs")
    options = parser.parse_args()
    alarms = {run.name: replay(run) for run in options.replay}
    result = {"replayed_hours": HOURS, "replayed": alarms} | measure(
        [case for case in (*CASES, *ENDED) if case.until <= LONGEST]
    )
    code = ["src/glmforge_ops/monitor/rules", "tests/helpers/alert_cases.py", "tests/helpers/played.py"]
    print(write_result("alerts", result, code=code, out=options.out))
    print("\n".join(result["wrong"]) or f"{result['faults']} faults, none missed")
