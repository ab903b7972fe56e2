"""TCP between nodes: a listener for some seconds, and what others find when they connect to it."""

import errno
import json
import os
import signal
import socket
import threading
import time

from glmforge_ops.health.checks.probes.network import address_of, interface_to

_CHUNK = 1 << 20
_WINDOW_S = 0.1
_NUM_TRIPS = 100
_CONNECT_S = 5.0


def listen(cluster: dict, arguments: dict) -> dict:
    """Leave a listener behind, which ends by itself; its port, or why there is none."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    interface = cluster["interface"] or interface_to(arguments["peer"])
    found: dict = {"interface": interface, "address": address_of(interface) if interface else None}
    try:
        listener.bind(("", arguments["port"]))
        listener.listen(4096)
    except OSError as error:
        found.update({"port": None, "pid": None, "in_use": error.errno == errno.EADDRINUSE, "reason": error.strerror})
        return found
    found.update({"port": listener.getsockname()[1], "in_use": False, "reason": None})
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            signal.alarm(int(arguments["seconds"]))  # the end, whatever happens
            os.closerange(3, listener.fileno())
            os.closerange(listener.fileno() + 1, 1024)
            _serve(listener, arguments["token"].encode())
        finally:
            os._exit(0)
    found.update({"pid": pid, "began": _began(pid)})
    return found


def stop(cluster: dict, arguments: dict) -> dict:
    """End the listener, unless its id is another process's by now."""
    is_it = _began(arguments["pid"]) == arguments["began"]
    if is_it:
        os.kill(arguments["pid"], signal.SIGKILL)
    return {"ended": is_it}


def _began(pid: int) -> "str | None":
    """When a process started, in clock ticks since the boot."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _serve(listener: socket.socket, token: bytes) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection, token), daemon=True).start()


def _answer(connection: socket.socket, token: bytes) -> None:
    """The token first; then what the other asks for: its bytes counted, or each of them sent back."""
    with connection:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(token + b"\n")
            what = connection.recv(1)
            if what == b"c":
                connection.sendall(json.dumps(_count(connection)).encode())
            while what == b"e":
                byte = connection.recv(1)
                if not byte:
                    break
                connection.sendall(byte)
        except OSError:
            pass  # who asked tells


def _count(connection: socket.socket) -> dict:
    """Bytes, and the most in a tenth of a second: as counted where they arrive, no buffer makes a link look fast."""
    buffer = memoryview(bytearray(_CHUNK))
    began = start = time.monotonic()
    total = in_window = 0
    best = 0.0
    while True:
        size = connection.recv_into(buffer)
        now = time.monotonic()
        total += size
        in_window += size
        if now - start >= _WINDOW_S:
            best = max(best, in_window / (now - start))
            start, in_window = now, 0
        if not size:
            return {"bytes": total, "seconds": now - began, "best": best}


def connect(cluster: dict, arguments: dict) -> dict:
    """Whether the listener is reached, and is the right one."""
    try:
        with _open(arguments) as connection:
            said = _read_line(connection)
    except TimeoutError:
        return {"reached": False, "right": None, "reason": f"no answer within {_CONNECT_S:g} s"}
    except OSError as error:
        return {"reached": False, "right": None, "reason": error.strerror or str(error)}
    return {"reached": True, "right": said == arguments["token"].encode(), "reason": None}


def send(cluster: dict, arguments: dict) -> dict:
    """How many bytes per second arrive there, from a common moment on."""
    try:
        with _open(arguments) as connection:
            _read_line(connection)
            time.sleep(max(0.0, min(arguments["start_at"] - time.time(), arguments["wait_s"])))
            connection.settimeout(arguments["seconds"] + 60)
            connection.sendall(b"c")
            block, end = bytes(_CHUNK), time.monotonic() + arguments["seconds"]
            connection.settimeout(1.0)
            while time.monotonic() < end:
                try:
                    connection.send(block)
                except TimeoutError:
                    continue
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(60)
            counted = json.loads(_read_all(connection))
    except (OSError, ValueError) as error:
        return {"rate": None, "best": None, "reason": str(error)}
    return {"rate": counted["bytes"] / counted["seconds"], "best": counted["best"], "reason": None}


def trip(cluster: dict, arguments: dict) -> dict:
    """Microseconds of a byte there and back: the median and the least."""
    times = []
    try:
        with _open(arguments) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _read_line(connection)
            connection.sendall(b"e")
            for _ in range(_NUM_TRIPS):
                began = time.monotonic()
                connection.sendall(b"x")
                if not connection.recv(1):
                    break
                times.append(time.monotonic() - began)
    except OSError as error:
        return {"least": None, "median": None, "reason": str(error)}
    if not times:
        return {"least": None, "median": None, "reason": "it closes the connection"}
    return {"least": 1e6 * min(times), "median": 1e6 * sorted(times)[len(times) // 2], "reason": None}


def _open(arguments: dict) -> socket.socket:
    return socket.create_connection((arguments["address"], arguments["port"]), timeout=_CONNECT_S)


def _read_line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < 200:
        byte = connection.recv(1)
        if not byte:
            break
        line += byte
    return line.rstrip(b"\n")


def _read_all(connection: socket.socket) -> bytes:
    chunks: list = []
    while True:
        chunk = connection.recv(65536)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
