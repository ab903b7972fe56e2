"""Rules under promtool: cases of `helpers.alert_cases` as its test files."""

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from helpers.alert_cases import Case, Series


def verdict(cases: Iterable[Case], rules: dict[str, str], directory: Path) -> str:
    """What promtool finds wrong with the rules, "" for nothing. `rules`: texts of files by name, recordings first."""
    cases = list(cases)
    groups = _needed([group for text in rules.values() for group in yaml.safe_load(text)["groups"]], cases)
    (directory / "rules.yml").write_text(yaml.safe_dump({"groups": groups}))
    file = directory / "tests.yml"
    content = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "group_eval_order": [group["name"] for group in groups],
        "tests": [_test(case) for case in cases],
    }
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=300)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def alarms_of(series: Mapping[str, Sequence[float | None]], rules: dict[str, str], directory: Path) -> list[str]:
    """Names of alerts that fire at any time if these values come every 15 s. None: not known yet."""
    for name, text in rules.items():
        (directory / name).write_text(text)
    seconds = 15 * (max(map(len, series.values())) - 1)
    test = {
        "interval": "15s",
        "input_series": [
            {"series": name, "values": " ".join("_" if one is None else f"{one!r}" for one in values)}
            for name, values in series.items()
        ],
        "promql_expr_test": [
            {
                "expr": f'count by (alertname) (count_over_time(ALERTS{{alertstate="firing"}}[{seconds}s]))',
                "eval_time": f"{seconds}s",
                "exp_samples": [],
            }
        ],
    }
    groups = [group["name"] for text in rules.values() for group in yaml.safe_load(text)["groups"]]
    content = {"rule_files": list(rules), "evaluation_interval": "15s", "group_eval_order": groups, "tests": [test]}
    (directory / "tests.yml").write_text(yaml.safe_dump(content, sort_keys=False))
    command = ["promtool", "test", "rules", str(directory / "tests.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    found = sorted(set(re.findall(r'alertname="(\w+)"', done.stdout + done.stderr)))
    assert found or done.returncode == 0, done.stdout + done.stderr
    return found


def _needed(groups: list[dict[str, Any]], cases: Iterable[Case]) -> list[dict[str, Any]]:
    """The alerts of the cases and what they are made of: evaluating all others takes ten times as long."""
    wanted = {case.alert for case in cases}
    for group in reversed(groups):
        group["rules"] = [rule for rule in reversed(group["rules"]) if _take(rule, wanted)][::-1]
    return [group for group in groups if group["rules"]]


def _take(rule: dict[str, Any], wanted: set[str]) -> bool:
    is_wanted = rule.get("alert", rule.get("record")) in wanted
    if is_wanted:
        wanted.update(re.findall(r"[a-z]+:[a-z_:]+", rule["expr"]))
    return is_wanted


def _test(case: Case) -> dict[str, Any]:
    return {
        "name": case.id,
        "interval": "1m",
        "input_series": [
            {"series": name, "values": _values(one, case.until)} for name, one in case.all_series().items()
        ],
        "promql_expr_test": list(_expected(case)),
    }


def _values(one: Series, until: int) -> str:
    """Explicit values; a series that ends is stale at once, as one whose target is gone."""
    texts = []
    for minute in range(until + 1):
        value, before = one(minute), one(minute - 1) if minute else None
        texts.append(f"{value!r}" if value is not None else "_" if before is None else "stale")
    return " ".join(texts)


def _expected(case: Case) -> Iterable[dict[str, Any]]:
    """Fires from minute `fires` to before `resolves`, and at no other time."""
    selector = f'ALERTS{{alertname="{case.alert}",alertstate="firing"}}'
    if case.fires is None or case.resolves is None:
        yield {"expr": f"count_over_time({selector}[{case.until}m])", "eval_time": f"{case.until}m", "exp_samples": []}
        return
    length = case.resolves - case.fires
    for minute, window in ((case.until, case.until), (case.resolves - 1, length - 1)):
        yield {
            "expr": f"sum(count_over_time({selector}[{window}m]))",
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": "{}", "value": length}],
        }
