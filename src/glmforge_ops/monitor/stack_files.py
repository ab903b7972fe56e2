"""The configuration of the monitoring stack: Prometheus, Grafana's provisioning, a compose file for containers."""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from glmforge.data.files import write_whole
from glmforge_ops.monitor.rule_files import RULE_FILES, monitoring_files

TARGETS = "targets.json"
Target = tuple[str, str]
"""A job (node, gpu, serving) and an address, host:port."""
IMAGES = {
    "prometheus": "prom/prometheus:v2.53.2",
    "alertmanager": "prom/alertmanager:v0.27.0",
    "node": "prom/node-exporter:v1.8.2",
    "grafana": "grafana/grafana:11.2.0",
}


def write_files(
    directory: Path, ports: Mapping[str, int], webhook: str, interval_s: int, also: Sequence[Target] = ()
) -> None:
    """Everything but Grafana's; `ports` has the servers that are started."""
    for name, text in monitoring_files(webhook).items():
        _write(directory / name, text)
    _write(directory / "prometheus.yml", yaml.safe_dump(prometheus_config(ports, interval_s, also), sort_keys=False))
    if not (directory / TARGETS).exists():
        _write(directory / TARGETS, "[]\n")


def prometheus_config(ports: Mapping[str, int], interval_s: int, also: Sequence[Target] = ()) -> dict[str, Any]:
    """`prometheus.yml`; files that it names are beside it. `also`: targets that no file announces."""
    config: dict[str, Any] = {
        "global": {"scrape_interval": f"{interval_s}s", "evaluation_interval": f"{interval_s}s"},
        "rule_files": list(RULE_FILES),
        "scrape_configs": [
            # Targets of runs have a label `job` of their own: glmforge, corpus, serving, and node or gpu of Slurm.
            {"job_name": "glmforge", "file_sd_configs": [{"files": [TARGETS], "refresh_interval": f"{interval_s}s"}]}
        ],
    }
    fixed = [("node", f"127.0.0.1:{ports['node']}")] if "node" in ports else []
    for job in ("node", "gpu", "serving"):
        if addresses := [address for of, address in (*fixed, *also) if of == job]:
            config["scrape_configs"].append({"job_name": job, "static_configs": [{"targets": addresses}]})
    if "alertmanager" in ports:
        targets = [f"127.0.0.1:{ports['alertmanager']}"]
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": targets}]}]}
    return config


def write_grafana(
    directory: Path, host: str, port: int, prometheus: int, login: tuple[str, str] | None, seen_at: Path | None = None
) -> None:
    """Configuration, a generated password that only this user can read, data source and dashboards.

    `seen_at`: where Grafana sees the directory, in a container.
    """
    from glmforge_ops.monitor.dashboards.grafana import write_dashboards

    place = (seen_at or directory) / "grafana"
    grafana = directory / "grafana"
    write_dashboards(grafana / "dashboards")
    password = grafana / "admin-password"
    if not password.exists():
        _write(password, secrets.token_urlsafe(24))
    ini: dict[str, dict[str, object]] = {
        "server": {"http_addr": host, "http_port": port},
        "security": {"admin_password": f"$__file{{{place / 'admin-password'}}}", "disable_gravatar": "true"},
        "auth.anonymous": {"enabled": "false"},
        "users": {"allow_sign_up": "false"},
        "analytics": {"reporting_enabled": "false", "check_for_updates": "false"},
        "paths": {"data": place / "data", "logs": place / "logs", "provisioning": place / "provisioning"},
    }
    lines = [f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in rows.items()) for name, rows in ini.items()]
    _write(grafana / "grafana.ini", "\n".join(lines))
    source: dict[str, Any] = {
        "name": "Prometheus", "uid": "glmforge-prometheus", "type": "prometheus", "access": "proxy", "isDefault": True,
        "url": f"http://127.0.0.1:{prometheus}",
    }  # fmt: skip
    if login is not None:
        source |= {"basicAuth": True, "basicAuthUser": login[0], "secureJsonData": {"basicAuthPassword": login[1]}}
    provider = {"name": "glmforge", "type": "file", "options": {"path": str(place / "dashboards")}}
    for kind, content in (("datasources", {"datasources": [source]}), ("dashboards", {"providers": [provider]})):
        text = yaml.safe_dump({"apiVersion": 1} | content, sort_keys=False)
        _write(grafana / "provisioning" / kind / "glmforge.yml", text)


def compose(directory: Path, commands: Mapping[str, list[str]], user: str) -> str:
    """A compose file whose containers use the host's network, so that they listen on the loopback as binaries do."""
    services: dict[str, Any] = {}
    for name, arguments in commands.items():
        services[name] = {
            "image": IMAGES[name],
            "network_mode": "host",
            "user": user,
            "read_only": True,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            "tmpfs": ["/tmp"],
            "volumes": [f"{directory}:{directory}"],
            "command": arguments,
        }
        if name == "node":
            services[name]["volumes"] = ["/:/host:ro,rslave"]
            services[name]["command"] = [*arguments, "--path.rootfs=/host"]
            services[name]["pid"] = "host"
    return yaml.safe_dump({"name": "glmforge-monitoring", "services": services}, sort_keys=False)


def _write(path: Path, text: str) -> None:
    """Whole, and for this user alone: some hold passwords."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, text.encode())
    path.chmod(0o600)
