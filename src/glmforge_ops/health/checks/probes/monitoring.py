"""Exporters of metrics on a node: do they answer, and with what?"""

import urllib.request

_LIMIT_S = 5
_MOST = 4 << 20


def gather(cluster: dict) -> dict:
    given = cluster["monitoring"]
    return {name: look(given[name + "_port"]) for name in ("node_exporter", "dcgm_exporter")}


def look(port: "int | None") -> "dict | None":
    """Number of samples, and of those about GPUs; or why there are none."""
    if port is None:
        return None
    found: dict = {"port": port, "samples": None, "gpu_samples": None, "reason": None}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=_LIMIT_S) as reply:
            lines = reply.read(_MOST).decode(errors="replace").splitlines()
    except (OSError, ValueError) as error:
        found["reason"] = str(getattr(error, "reason", error))
        return found
    samples = [line for line in lines if line and not line.startswith("#") and " " in line]
    found["samples"] = len(samples)
    found["gpu_samples"] = sum(line.startswith("DCGM_FI_") for line in samples)
    return found
