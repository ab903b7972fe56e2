"""The rule files of Prometheus and the configuration of Alertmanager, as this package brings them, and written out.

Alerts link to sections of `docs/runbook.md`; where its pages are published, `runbook` is their address. Alertmanager
has one receiver, a webhook.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import jinja2
import yaml

from glmforge.data.files import disk_errors, refuse_unwritable, write_whole
from glmforge.errors import ConfigError
from glmforge.files import shown
from glmforge_ops.render import safe_environment

RUNBOOK = "docs/runbook.md"
"""What `runbook_url` of each rule begins with."""

RULE_FILES = ("recording.yml", "alerts.yml")

_HERE = files("glmforge_ops.monitor")


class Alert(NamedTuple):
    """What the tables of the documents tell of a rule; `lasting` is `for`."""

    name: str
    severity: str
    lasting: str
    section: str
    fix: str


def rule_text(name: str, runbook: str = RUNBOOK) -> str:
    """A file of `RULE_FILES`, its links leading to `runbook`. Raises `ConfigError` if that is no address of a page."""
    if any(char.isspace() or char in "\"'{}#\\" or not char.isprintable() for char in runbook):
        raise ConfigError(f"--runbook {shown(runbook)}: not the address of a page; as in https://HOST/runbook")
    text = _HERE.joinpath("rules", name).read_text("utf-8")
    return text.replace(f"runbook_url: {RUNBOOK}#", f"runbook_url: {runbook}#")


def alertmanager_text(webhook: str) -> str:
    """Alertmanager's configuration. Raises `ConfigError` if `webhook` is no URL."""
    try:
        parts = urlsplit(webhook)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_url = False
    if not is_url or not webhook.isprintable() or " " in webhook:
        raise ConfigError(f"--webhook {shown(webhook)}: not a URL; as in http://127.0.0.1:9095/alerts")
    template = _HERE.joinpath("alertmanager.yml.jinja").read_text("utf-8")
    return safe_environment(jinja2.BaseLoader()).from_string(template).render(webhook=webhook)


def monitoring_files(webhook: str, runbook: str = RUNBOOK) -> dict[str, str]:
    """Names and contents of all files. Raises `ConfigError` as above."""
    rules = {name: rule_text(name, runbook) for name in RULE_FILES}
    return rules | {"alertmanager.yml": alertmanager_text(webhook)}


def write_monitoring_files(directory: Path, webhook: str, runbook: str = RUNBOOK, *, replace: bool = False) -> None:
    """Write `monitoring_files`, each whole. Raises `GlmforgeError` if one exists and is not to be replaced."""
    contents = monitoring_files(webhook, runbook)
    for name in contents:
        refuse_unwritable(directory / name, replace)
    with disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        write_whole(directory / name, text.encode())


def alerts() -> list[Alert]:
    """All alerts in the order of their file."""
    groups: list[dict[str, Any]] = yaml.safe_load(rule_text("alerts.yml"))["groups"]
    return [
        Alert(
            name=rule["alert"],
            severity=rule["labels"]["severity"],
            lasting=rule["for"],
            section=rule["annotations"]["runbook_url"].partition("#")[2],
            fix=rule["annotations"]["description"],
        )
        for group in groups
        for rule in group["rules"]
    ]


def alerts_markdown() -> str:
    """The table of docs/runbook.md."""
    lines = ["| alert | severity | lasting | what to do | more |", "|---|---|---|---|---|"]
    lines += [
        f"| `{one.name}` | {one.severity} | {one.lasting} | {one.fix} | [section](#{one.section}) |" for one in alerts()
    ]
    return "\n".join(lines) + "\n"
