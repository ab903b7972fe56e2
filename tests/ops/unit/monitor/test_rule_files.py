"""The rule files as they are written: links, labels, links of another runbook, GPUs under either exporter's names."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.errors import ConfigError, GlmforgeError
from glmforge.recipes.all_metrics import all_metrics
from glmforge_ops.monitor.rule_files import RULE_FILES, alerts, monitoring_files, rule_text
from helpers.packages import install_or_skip

RUNBOOK = Path(__file__).parents[4] / "docs" / "runbook.md"
RULES = [rule for name in RULE_FILES for group in yaml.safe_load(rule_text(name))["groups"] for rule in group["rules"]]
OF_THE_EXPORTER = {
    f"glmforge_{name}"
    for name in (
        *("run_ended", "last_record_timestamp_seconds", "last_checkpoint_timestamp_seconds", "step"),
        *("checkpoint_failures_total", "nonfinite_steps_total"),
    )
}


def test_every_link_leads_to_a_section_of_the_runbook() -> None:
    headings = re.findall(r"^## (.*)$", RUNBOOK.read_text("utf-8"), re.MULTILINE)
    sections = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert {alert.section for alert in alerts()} <= sections


def test_every_alert_says_how_urgent_it_is_and_what_to_do() -> None:
    for alert in alerts():
        assert alert.severity in ("page", "ticket"), alert
        assert re.fullmatch(r"\d+[sm]", alert.lasting), alert
        assert len(alert.fix) > 40, alert
        assert alert.fix.endswith("."), alert


def test_rules_read_only_metrics_that_exist() -> None:
    """Those of the table under their exported names, of the exporter, and series that a rule before records."""
    table = all_metrics()
    known = {exported.name for name in table if (exported := table.exported(name))} | OF_THE_EXPORTER
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    for rule in RULES:
        assert set(re.findall(r"\bglmforge_\w+", rule["expr"])) <= known, rule
        assert set(re.findall(r"\b(?:run|gpu):[a-z_:]+", rule["expr"])) <= recorded, rule


def test_links_lead_to_the_runbook_that_is_given() -> None:
    text = monitoring_files("http://h/hook", "https://docs.example.org/runbook")["alerts.yml"]
    urls = [rule["annotations"]["runbook_url"] for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    assert all(url.startswith("https://docs.example.org/runbook#") for url in urls)


@pytest.mark.parametrize("runbook", ["a b", "a\nseverity: x", 'a"', "a{{ b", "a#b"])
def test_a_runbook_that_would_change_the_rules_is_refused(runbook: str) -> None:
    with pytest.raises(ConfigError, match="--runbook"):
        monitoring_files("http://h/hook", runbook)


@pytest.mark.parametrize("webhook", ["oncall", "ftp://h/x", "http://", "http://h:99999/", "http://h/a b", "http://[::"])
def test_a_webhook_that_is_no_url_is_refused(webhook: str) -> None:
    with pytest.raises(ConfigError, match="--webhook"):
        monitoring_files(webhook)


def test_alertmanager_takes_its_configuration_and_routes_all_to_the_webhook(tmp_path: Path) -> None:
    install_or_skip(["amtool"], ["prometheus-alertmanager"])
    webhook = "https://oncall.example.org/hook?team='a': #1"
    file = tmp_path / "alertmanager.yml"
    file.write_text(monitoring_files(webhook.replace(" ", "%20"))["alertmanager.yml"])
    subprocess.run(["amtool", "check-config", str(file)], check=True, capture_output=True)
    assert yaml.safe_load(file.read_text())["receivers"][0]["webhook_configs"][0]["url"] == webhook.replace(" ", "%20")
    for labels in ("severity=page", "severity=ticket", "alertname=unknown"):
        command = ["amtool", "config", "routes", "test", f"--config.file={file}", labels]
        assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "webhook"


def test_the_command_writes_all_files_and_replaces_none_unasked(tmp_path: Path) -> None:
    out = tmp_path / "new" / "rules"
    runner = CliRunner()
    done = runner.invoke(app, ["monitor", "rules", "--output", str(out), "--webhook", "http://h/hook"])
    assert done.exit_code == 0, done.output
    assert {path.name: path.read_text() for path in out.iterdir()} == monitoring_files("http://h/hook")
    (out / "recording.yml").unlink()
    again = runner.invoke(app, ["monitor", "rules", "--output", str(out)])
    assert again.exit_code != 0
    assert not (out / "recording.yml").exists()
    assert runner.invoke(app, ["monitor", "rules", "--output", str(out), "--force"]).exit_code == 0
    below_a_file = runner.invoke(app, ["monitor", "rules", "--output", str(out / "alerts.yml" / "x")])
    assert isinstance(below_a_file.exception, GlmforgeError)


def test_both_gpu_exporters_give_the_same_series(tmp_path: Path) -> None:
    """An H100 at half load, by ours and by dcgm-exporter, one of them or both."""
    install_or_skip(["promtool"], ["prometheus"])
    ours, dcgm = '{gpu="0",uuid="GPU-1",hostname="n1"%s}', '{gpu="0",UUID="GPU-1",Hostname="n1",modelName="H100"}'
    values = {
        "gpu:utilization:ratio": (0.5, {"utilization": 50}, {"GPU_UTIL": 50}),
        "gpu:memory_used:bytes": (1 << 35, {"memory_used_bytes": 1 << 35}, {"FB_USED": 1 << 15}),
        "gpu:memory_total:bytes": (1 << 36, {"memory_total_bytes": 1 << 36}, {"FB_USED": 1 << 15, "FB_FREE": 1 << 15}),
        "gpu:temperature:celsius": (64, {"temperature_celsius": 64}, {"GPU_TEMP": 64}),
        "gpu:power:watts": (650, {"power_watts": 650}, {"POWER_USAGE": 650}),
        "gpu:xid:last": (31, {"xid": 31}, {"XID_ERRORS": 31}),
        "gpu:ecc_uncorrected:total": (2, {"ecc_errors_total": 2}, {"ECC_DBE_VOL_TOTAL": 2}),
        "gpu:throttled:bool": (1, {"throttled": 1}, {"CLOCK_THROTTLE_REASONS": 0x44}),
    }
    assert {rule["record"] for rule in RULES if rule.get("record", "").startswith("gpu:")} == set(values)
    both = {}
    for _, one, other in values.values():
        both |= {f"nvidia_gpu_{n}" + ours % (',type="uncorrected"' * n.startswith("ecc")): v for n, v in one.items()}
        both |= {f"DCGM_FI_DEV_{n}{dcgm}": v for n, v in other.items()}
    expected = [
        {"expr": name, "eval_time": "2m", "exp_samples": [{"labels": name + ours % "", "value": value}]}
        for name, (value, _, _) in values.items()
    ]
    sets = [{k: v for k, v in both.items() if k.startswith(which)} for which in ("nvidia", "DCGM", ("nvidia", "DCGM"))]
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": f"{value}x2"} for name, value in series.items()],
            "promql_expr_test": expected,
        }
        for series in sets
    ]
    (tmp_path / "recording.yml").write_text(rule_text("recording.yml"))
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": ["recording.yml"], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
