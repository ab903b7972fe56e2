"""One Prometheus and a run of thousands of ranks: samples per second, memory, the slowest queries, series.

    python benchmarks/monitor_scale.py                    1,024 ranks every 5 s, then 8,192 every 30 s
    python benchmarks/monitor_scale.py --quick            64 ranks every second, for 15 s
    python benchmarks/monitor_scale.py --out FILE

One process exports what all ranks of a run of GLM-4.5 355B would (`observe.prometheus: {ranks: all}`): rank 0 the
whole table, with a series per layer, router and source; the others 12 series; and eight GPUs of each node. A real
Prometheus with our rules scrapes every rank as a target of its own. The queries of all panels, and of all rules, are
asked over the whole time; panels of node exporter, servers and corpus runs have no data here.
"""

import argparse
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path
from typing import Any

import psutil
import yaml
from record import ROOT, write_result

from glmforge.observe.metrics import METRICS
from glmforge.recipes.all_metrics import all_metrics
from glmforge_ops.monitor.dashboards.panels import DASHBOARDS
from glmforge_ops.monitor.page.server import expression
from glmforge_ops.monitor.rule_files import RULE_FILES, rule_text

sys.path.insert(0, str(ROOT / "tests"))

from helpers.prometheus_stack import Stack, answering, fetch, stack

LABELS = {"layer": 93, "router": 90, "source": 8, "depth": 1, "benchmark": 6, "cause": 6, "term": 4, "model": 1}
"""Values of each label in a run of GLM-4.5 355B; needles and single experts (`expert_load`) are by option."""
GPUS = 8
OF_A_RANK = ["step_seconds", "data_seconds", "rss_bytes", "device_memory_bytes"]
OF_A_RANK += [name for name in METRICS if name.startswith("comm_seconds_")]
OF_A_GPU = {
    "utilization": 90,
    "memory_used_bytes": 70e9,
    "memory_total_bytes": 80e9,
    "temperature_celsius": 60,
    "power_watts": 600,
    "xid": 0,
    "throttled": 0,
}
PANELS = {
    f"{dashboard.title}: {panel.title} {number}": expression(query.expr, "", 15)
    for dashboard in DASHBOARDS
    for panel in dashboard.panels
    for number, query in enumerate(panel.queries)
}


def of_rank_0() -> list[str]:
    """Names and labels of the series of rank 0."""
    table = all_metrics()
    series: list[str] = []
    for name in table:
        exported = table.exported(name)
        if exported is None or name == "expert_load" or any(label.startswith("needle") for label in exported.labels):
            continue
        values = [""]
        for label in exported.labels:
            values = [f'{one},{label}="{n:02d}"'.lstrip(",") for one in values for n in range(LABELS.get(label, 1))]
        series += [f"{exported.name}{{{one}}}" if one else exported.name for one in values]
    return series


class Fleet:
    """Answers for all ranks (/0, /1, ...) and nodes (/node/0, ...)."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks, self.rank_0 = num_ranks, of_rank_0()

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        kind, number = path.rpartition("/")[::2]
        second = int(time.monotonic())
        if kind:
            labels = "".join(f'gpu="%d",uuid="{number}-%d",hostname="n{number}"\n' % (g, g) for g in range(GPUS))
            lines = [f"nvidia_gpu_{n}{{{one}}} {v + second % 7}" for n, v in OF_A_GPU.items() for one in labels.split()]
        else:
            names = self.rank_0 if number == "0" else [f"glmforge_{name}" for name in OF_A_RANK]
            lines = [f"{name} {1 + (second * 31 + at) % 97 / 100}" for at, name in enumerate(names, int(number))]
        return 200, ("\n".join(lines) + "\n").encode()

    def targets(self, port: int) -> list[dict[str, Any]]:
        run = {"job": "glmforge", "run": "glm", "stage": "pretrain"}
        ranks = [(f"/{rank}", run | {"rank": str(rank)}) for rank in range(self.num_ranks)]
        nodes = [(f"/node/{node}", {"job": "gpu"}) for node in range(self.num_ranks // GPUS)]
        return [
            {"targets": [f"127.0.0.1:{port}"], "labels": {**labels, "__metrics_path__": path, "instance": f"h{path}"}}
            for path, labels in (*ranks, *nodes)
        ]


def measure(num_ranks: int, interval_s: int, seconds: float) -> dict[str, Any]:
    """Scrape for so long, then ask. Figures of samples are of the second half."""
    fleet = Fleet(num_ranks)
    with tempfile.TemporaryDirectory() as place, stack(Path(place), interval=f"{interval_s}s") as servers:
        with answering(fleet.answer) as port:
            servers.set_targets(fleet.targets(port))
            process = psutil.Process(servers.processes["prometheus"].pid)
            time.sleep(seconds / 2)
            before, cpu = _own(servers), process.cpu_times()
            began = time.monotonic()
            time.sleep(seconds / 2)
            lasted = time.monotonic() - began
            after, cpu_after = _own(servers), process.cpu_times()
            up = servers.query("count(up == 1)")
            lost = servers.query("sum(count_over_time(up[10m])) - sum(sum_over_time(up[10m]))")
            queries = _ask(servers, seconds, interval_s)
        used = (cpu_after.user + cpu_after.system - cpu.user - cpu.system) / lasted
        return {
            "ranks": num_ranks,
            "targets": len(fleet.targets(0)),
            "interval_s": interval_s,
            "seconds": seconds,
            "targets_up": int(up[0]["value"][1]) if up else 0,
            "scrapes_lost": int(lost[0]["value"][1]) if lost else 0,
            "samples_per_second": round((after["appended"] - before["appended"]) / lasted),
            "series": int(after["series"]),
            "series_of_rank_0": len(fleet.rank_0),
            "series_of_other_ranks": len(OF_A_RANK),
            "memory_mib": round(process.memory_info().rss / 2**20),
            "cores": round(used, 2),
            "rules_seconds": round(after["rules"], 3),
            "slowest_panels": [one for one in queries if one["query"] in PANELS][:8],
            "panels_with_data": sum(bool(one["series"]) for one in queries if one["query"] in PANELS),
            "slowest_rules": [one for one in queries if one["query"] not in PANELS][:4],
        }


def _own(servers: Stack) -> dict[str, float]:
    """What Prometheus says of itself: samples so far, series now, and the time that the slowest group of rules took."""
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    lines = opener.open(f"{servers.prometheus}/metrics", timeout=30).read().decode().splitlines()
    values = [(line.rpartition(" ")[0], float(line.rpartition(" ")[2])) for line in lines if not line.startswith("#")]

    def all_of(name: str) -> list[float]:
        return [value for key, value in values if key.partition("{")[0] == name]

    return {
        "appended": sum(all_of("prometheus_tsdb_head_samples_appended_total")),
        "series": sum(all_of("prometheus_tsdb_head_series")),
        "rules": max(all_of("prometheus_rule_group_last_duration_seconds")),
    }


def _ask(servers: Stack, seconds: float, interval_s: int) -> list[dict[str, Any]]:
    """Each panel and each rule, over the whole time, slowest first."""
    rules = [r for name in RULE_FILES for group in yaml.safe_load(rule_text(name))["groups"] for r in group["rules"]]
    queries = PANELS | {rule.get("alert") or rule["record"]: rule["expr"] for rule in rules}
    end, found = time.time(), []
    for name, query in queries.items():
        span = {"start": f"{end - seconds:.3f}", "end": f"{end:.3f}", "step": str(interval_s)}
        url = f"{servers.prometheus}/api/v1/query_range?{urllib.parse.urlencode({'query': query, **span})}"
        began = time.monotonic()
        series = len(fetch(url)["data"]["result"])
        found.append({"query": name, "ms": round(1000 * (time.monotonic() - began)), "series": series})
    return sorted(found, key=lambda one: -one["ms"])


def bound(num_ranks: int) -> int:
    """Most series of a run, with the five that Prometheus adds to each target, without those of rules."""
    return len(of_rank_0()) + 5 + (num_ranks - 1) * (len(OF_A_RANK) + 5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/monitor_scale.json")
    options = parser.parse_args()
    sizes = [(64, 1, 15.0)] if options.quick else [(1024, 5, 60.0), (8192, 30, 150.0)]
    content = {
        "bound_of_8192_ranks": bound(8192),
        "runs": {str(ranks): measure(ranks, interval, seconds) for ranks, interval, seconds in sizes},
    }
    code = [
        "src/glmforge_ops/monitor/rules",
        "src/glmforge_ops/monitor/dashboards",
        "tests/helpers/prometheus_stack.py",
    ]
    print(write_result("monitor_scale", content, code=code, out=options.out))
