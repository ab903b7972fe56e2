"""Every alert under promtool: fires in its minute and not before, resolves, and is silent at what is no fault."""

import shutil
from pathlib import Path

import pytest

from glmforge_ops.monitor.rule_files import RULE_FILES, alerts, rule_text
from helpers.alert_cases import CASES, ENDED
from helpers.promtool import verdict

RULES = {name: rule_text(name) for name in RULE_FILES}
BY_ALERT = {name: [case for case in (*CASES, *ENDED) if case.alert == name] for name in {case.alert: 0 for case in CASES}}

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    names = {alert.name for alert in alerts()}
    assert names == {case.alert for case in CASES if case.fires is not None}
    assert names == {case.alert for case in (*CASES, *ENDED) if case.fires is None}


@pytest.mark.parametrize("alert", BY_ALERT)
def test_fires_in_its_minute_and_at_no_other_time(alert: str, tmp_path: Path) -> None:
    assert verdict(BY_ALERT[alert], RULES, tmp_path) == ""
