"""Storage that all nodes share: what it is, and what several nodes do there together."""

import os
import subprocess
import time

from glmforge_ops.health.checks.probes.paths import describe, try_writing

_TOOL_LIMIT_S = 5
_BLOCK = 1 << 20
_NUM_SMALL = 50


def gather(cluster: dict) -> dict:
    path = cluster["shared_path"]
    if path is None:
        return {"path": None}
    found = describe(path)
    found["root_device"] = os.stat("/").st_dev == os.stat(path).st_dev if found["kind"] else None
    found["stripe_count"] = found["beegfs"] = None
    if found["kind"] == "directory":
        found.update(try_writing(path))
        kind = found["mount"]["type"] if found["mount"] else ""
        if kind == "lustre":
            found["stripe_count"] = stripe_count(_said("lfs", "getstripe", "-d", path))
    return found


def stripe_count(text: "str | None") -> "int | None":
    """Of `lfs getstripe -d`: "stripe_count:  4 stripe_size: ...", or "lmm_stripe_count:  4" for each component."""
    words = (text or "").replace("lmm_stripe_count:", "stripe_count:").split()
    counts = [words[at + 1] for at, word in enumerate(words[:-1]) if word == "stripe_count:"]
    numbers = [int(count) for count in counts if count.lstrip("-").isdigit()]
    return numbers[-1] if numbers else None


def latency(cluster: dict, arguments: dict) -> dict:
    """Milliseconds of making and removing a small file: the median of some."""
    folder = os.path.join(cluster["shared_path"], arguments["folder"])
    os.makedirs(folder, exist_ok=True)
    times = []
    for number in range(_NUM_SMALL):
        file = os.path.join(folder, arguments["name"] + f"-{number}")
        began = time.monotonic()
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.stat(file)
        os.unlink(file)
        times.append(time.monotonic() - began)
    return {"milliseconds": 1000 * sorted(times)[len(times) // 2]}


def put(cluster: dict, arguments: dict) -> dict:
    """Leave a file that the others look for."""
    folder = os.path.join(cluster["shared_path"], arguments["folder"])
    os.makedirs(folder, exist_ok=True)
    file = os.path.join(folder, arguments["name"])
    with open(file, "w") as stream:
        stream.write(arguments["token"])
        stream.flush()
        os.fsync(stream.fileno())
    return {"token": arguments["token"]}


def look(cluster: dict, arguments: dict) -> dict:
    """What stands in the files that others left: by name, None for one that does not come within some seconds."""
    folder = os.path.join(cluster["shared_path"], arguments["folder"])
    wanted = list(arguments["names"])
    found = dict.fromkeys(wanted)
    deadline = time.monotonic() + arguments["wait_s"]
    while wanted:
        for name in list(wanted):
            try:
                with open(os.path.join(folder, name)) as stream:
                    found[name] = stream.read(200)
                wanted.remove(name)
            except OSError:
                pass
        if not wanted or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return {"tokens": found}


def remove(cluster: dict, arguments: dict) -> dict:
    import shutil

    shutil.rmtree(os.path.join(cluster["shared_path"], arguments["folder"]), ignore_errors=True)
    return {"removed": True}


def speed(cluster: dict, arguments: dict) -> dict:
    """Bytes per second of writing a file through to the storage, together with the other nodes, and of reading the
    file of another node, which no cache here knows."""
    folder = os.path.join(cluster["shared_path"], arguments["folder"])
    os.makedirs(folder, exist_ok=True)
    _wait(arguments)
    size, block = arguments["megabytes"] * _BLOCK, os.urandom(_BLOCK)
    if arguments["direction"] == "write":
        file = os.path.join(folder, arguments["name"])
        began = time.monotonic()
        with open(file, "wb", buffering=0) as stream:
            for _ in range(arguments["megabytes"]):
                stream.write(block)
            os.fsync(stream.fileno())
        return {"rate": size / (time.monotonic() - began)}
    began, total = time.monotonic(), 0
    with open(os.path.join(folder, arguments["name"]), "rb", buffering=0) as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while True:
            chunk = stream.read(_BLOCK)
            if not chunk:
                break
            total += len(chunk)
    return {"rate": total / (time.monotonic() - began)}


def _wait(arguments: dict) -> None:
    time.sleep(max(0.0, min(arguments["start_at"] - time.time(), arguments["wait_s"])))


def _said(*command: str) -> "str | None":
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_TOOL_LIMIT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
