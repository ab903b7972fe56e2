"""Keys of this user, and whether they open the other nodes."""

import os
import shlex
import stat
import subprocess

_LIMIT_S = 15


def gather(cluster: dict) -> dict:
    folder = os.path.expanduser("~/.ssh")
    found: dict = {"folder": folder, "there": os.path.isdir(folder), "open": [], "has_key": False}
    if not found["there"]:
        return found
    for name in sorted(os.listdir(folder)):
        file = os.path.join(folder, name)
        if os.path.isfile(file) and is_private_key(file):
            found["has_key"] = True
            if os.stat(file).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                found["open"].append(file)
        elif name in ("authorized_keys", "config") and os.stat(file).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            found["open"].append(file)
    for place in (folder, os.path.dirname(folder)):
        if os.stat(place).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            found["open"].append(place)
    return found


def is_private_key(file: str) -> bool:
    try:
        with open(file, "rb") as stream:
            return b"PRIVATE KEY-----" in stream.read(100)
    except OSError:
        return False


def reach(cluster: dict, arguments: dict) -> dict:
    """Whether ssh gets to a node, called as the cluster says, and what it says otherwise. It asks nothing, and takes no
    host key that is not known."""
    given = cluster["ssh"]
    command = [*shlex.split(given["command"]), "-a", "-x", "-T", "-o", "BatchMode=yes"]
    command += ["-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=10"]
    if given["identity"]:
        command += ["-o", "IdentitiesOnly=yes", "-i", given["identity"]]
    if given["known_hosts"]:
        command += ["-o", 'UserKnownHostsFile="' + given["known_hosts"].replace("%", "%%") + '"']
    if given["user"]:
        command += ["-l", given["user"]]
    if given["port"]:
        command += ["-p", str(given["port"])]
    try:
        done = subprocess.run(
            [*command, "--", arguments["to"], "true"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        return {"status": None, "said": "there is no ssh"}
    except subprocess.TimeoutExpired:
        return {"status": 255, "said": "Connection timed out"}
    return {"status": done.returncode, "said": done.stderr.decode(errors="replace")[-1500:]}
