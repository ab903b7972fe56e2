"""NVLink: the links of each GPU, and how GPUs and network cards are joined; `nvidia-smi` tells both."""

from __future__ import annotations

import re

from glmforge_ops.health.checks.probes.reading import run

_GPU = re.compile(r"GPU (\d+): (.*?)(?: \(UUID: .*)?$")
_LINK = re.compile(r"\s*Link (\d+): (?:<?(inactive)>?|([\d.]+) GB/s)", re.IGNORECASE)
_DEVICE = re.compile(r"(GPU|NIC)\d+")


def gather(cluster: dict) -> dict:
    return {"gpus": _links(run("nvidia-smi", "nvlink", "-s")), "topology": _topology(run("nvidia-smi", "topo", "-m"))}


def _links(text: str | None) -> list[dict] | None:
    if text is None:
        return None
    gpus: list[dict] = []
    for line in text.splitlines():
        heading = _GPU.match(line)
        if heading:
            name = heading.group(2)
            gpus.append({"index": int(heading.group(1)), "name": name, "active": 0, "inactive": [], "slowest": None})
        link = _LINK.match(line)
        if not link or not gpus:
            continue
        if link.group(2):
            gpus[-1]["inactive"].append(int(link.group(1)))
            continue
        speed = float(link.group(3))
        gpus[-1]["active"] += 1
        gpus[-1]["slowest"] = speed if gpus[-1]["slowest"] is None else min(speed, gpus[-1]["slowest"])
    return gpus


def _topology(text: str | None) -> list[dict] | None:
    """How each device is joined with each other: {"from": "GPU0", "to": "GPU1", "by": "NV18"}."""
    if text is None:
        return None
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in text.splitlines()]
    heading = next((line.split() for line in lines if line.split()[:1] == ["GPU0"] and "CPU" in line), None)
    if heading is None:
        return None
    columns = [name for name in heading if _DEVICE.fullmatch(name)]
    pairs = []
    for line in lines:
        cells = line.split()
        if cells and _DEVICE.fullmatch(cells[0]) and len(cells) > len(columns) and cells != heading:
            ways = dict(zip(columns, cells[1:]))  # noqa: B905  # not in Python 3.8
            pairs += [{"from": cells[0], "to": to, "by": by} for to, by in ways.items() if by != "X"]
    return pairs
