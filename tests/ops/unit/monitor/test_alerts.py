"""Every alert under promtool: fires in its minute and not before, resolves, and is silent at what is no fault."""

import random
from pathlib import Path

import pytest

from glmforge_ops.monitor.rule_files import RULE_FILES, alerts, rule_text
from helpers.alert_cases import CASES, ENDED
from helpers.packages import install_or_skip
from helpers.promtool import alarms_of, verdict

RULES = {name: rule_text(name) for name in RULE_FILES}
BY_ALERT = {
    name: [case for case in (*CASES, *ENDED) if case.alert == name] for name in {case.alert: 0 for case in CASES}
}


@pytest.fixture(autouse=True, scope="module")
def _promtool() -> None:
    install_or_skip(["promtool"], ["prometheus"])


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    names = {alert.name for alert in alerts()}
    assert names == {case.alert for case in CASES if case.fires is not None}
    assert names == {case.alert for case in (*CASES, *ENDED) if case.fires is None}


@pytest.mark.parametrize("alert", BY_ALERT)
def test_fires_in_its_minute_and_at_no_other_time(alert: str, tmp_path: Path) -> None:
    assert verdict(BY_ALERT[alert], RULES, tmp_path) == ""


def _healthy(num: int) -> dict[str, list[float | None]]:
    """What comes every 15 s from a run that falls, saves every 20 minutes and evaluates for 5 minutes every 40, on a
    GPU whose memory is full and a disk that each save fills and the removal of old ones empties."""
    rng = random.Random(5)
    run, gpu, disk = 'run="r",stage="pretrain"', 'gpu="0",uuid="u",hostname="n1"', 'mountpoint="/",fstype="ext4"'
    now = [15.0 * n for n in range(num)]
    recorded = [at if at % 2400 < 2100 else at // 2400 * 2400 + 2100 for at in now]
    values = {
        f"glmforge_run_ended{{{run}}}": lambda at: 0.0,
        f"glmforge_step{{{run}}}": lambda at: at // 4,
        f"glmforge_loss{{{run}}}": lambda at: 2 + 3 / (1 + at / 600) + rng.gauss(0, 0.06) + 2 * (rng.random() < 0.01),
        f"glmforge_tokens_per_second{{{run}}}": lambda at: 1e6 * rng.gauss(1, 0.05),
        f"glmforge_world_size{{{run}}}": lambda at: 64.0,
        f"glmforge_step_seconds{{{run}}}": lambda at: rng.gauss(4, 0.2),
        f"glmforge_data_seconds{{{run}}}": lambda at: rng.expovariate(10),
        f"glmforge_straggler_ratio{{{run}}}": lambda at: 1 + rng.expovariate(25),
        f"glmforge_dead_experts{{{run}}}": lambda at: float(rng.random() < 0.3),
        f"glmforge_device_memory_bytes{{{run}}}": lambda at: 66e9,
        f"glmforge_nonfinite_steps_total{{{run}}}": lambda at: float(at > 3000) + float(at > 6000),
        f"glmforge_checkpoint_failures_total{{{run}}}": lambda at: 0.0,
        f"glmforge_attempts_before{{{run}}}": lambda at: 1.0 + (at > 4000),
        f"glmforge_last_checkpoint_timestamp_seconds{{{run}}}": lambda at: at // 1200 * 1200,
        f"nvidia_gpu_memory_used_bytes{{{gpu}}}": lambda at: 78.6e9,
        f"nvidia_gpu_memory_total_bytes{{{gpu}}}": lambda at: 80e9,
        f"nvidia_gpu_temperature_celsius{{{gpu}}}": lambda at: rng.gauss(74, 4),
        f"nvidia_gpu_throttled{{{gpu}}}": lambda at: float(rng.random() < 0.05),
        f"nvidia_gpu_xid{{{gpu}}}": lambda at: 43.0 * (at > 1000),
        f"node_filesystem_size_bytes{{{disk}}}": lambda at: 1000e9,
        f"node_filesystem_avail_bytes{{{disk}}}": lambda at: 400e9 - 50e9 * (at // 1200 % 3),
        f"node_filesystem_readonly{{{disk}}}": lambda at: 0.0,
    }
    series: dict[str, list[float | None]] = {name: [value(at) for at in recorded] for name, value in values.items()}
    return series | {f"glmforge_last_record_timestamp_seconds{{{run}}}": list(recorded)}


def test_two_hours_of_health_raise_no_alarm_and_one_fault_among_them_does(tmp_path: Path) -> None:
    healthy = _healthy(481)
    assert alarms_of(healthy, RULES, tmp_path) == []
    name = next(name for name in healthy if "tokens_per_second" in name)
    slow = [(one or 0.0) * (0.7 if n > 300 else 1) for n, one in enumerate(healthy[name])]
    assert alarms_of(healthy | {name: slow}, RULES, tmp_path) == ["ThroughputLow"]
