"""How long `glmforge cluster dev up` takes on a bare machine: the packages' installation and the cluster, apart.

    python benchmarks/dev_cluster.py [--times 5] [--root DIRECTORY]

The bare machine is Debian's smallest system (`debootstrap --variant=minbase`) in a directory, which needs root and
takes a minute or two, or one that is there already (`--root`). Into it go, in a mount namespace that ends with each
command, this machine's Python, glmforge, and where apt finds its packages; nothing else is shared. Measured in it:

- `install_seconds`: Slurm, munge, the ssh server and iproute2 from Debian, `apt-get update` included.
- `up_seconds`: from the command to three nodes that are idle, each time after a `down`; and its processor time.

Writes benchmarks/results/dev_cluster.json.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from record import ROOT, write_result

_APT = ("/etc/apt", "/etc/resolv.conf", "/etc/ssl/certs", "/usr/share/keyrings")
_INSTALL = (
    "from glmforge_ops.dev.packages import ensure, needed; "
    "ensure(needed(slurm=True, accounting=False, namespaces=True, ssh=True), print)"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="of up and down")
    parser.add_argument("--root", type=Path, help="a bare system that is there already; what is installed there stays")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("needs root: a system of its own is made and entered")
    with _bare_system(given.root) as root:
        install_s, _ = _timed(root, sys.executable, "-c", _INSTALL)
        print(f"install {install_s:.1f} s", flush=True)
        ups = []
        for _ in range(given.times):
            seconds, processor_s = _timed(root, sys.executable, "-m", "glmforge", "cluster", "dev", "up", after=_DOWN)
            print(f"up {seconds:.1f} s", flush=True)
            ups.append({"seconds": round(seconds, 2), "processor_seconds": round(processor_s, 2)})
    figures: dict[str, Any] = {
        "install_seconds": round(install_s, 1),
        "ups": ups,
        "up_seconds": sorted(one["seconds"] for one in ups)[len(ups) // 2],
        "up_first_seconds": ups[0]["seconds"],
    }
    write_result("dev_cluster", figures, code=["src/glmforge_ops/dev"], out=given.out)


@contextmanager
def _bare_system(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="glmforge-bare-") as name:
        done = subprocess.run(["debootstrap", "--variant=minbase", "--include=libffi8", "bookworm", name], check=False)
        if done.returncode != 0:
            raise SystemExit("debootstrap failed; see above")
        yield Path(name)


_DOWN = [sys.executable, "-m", "glmforge", "cluster", "dev", "down"]


def _timed(root: Path, *command: str, after: list[str] | None = None) -> tuple[float, float]:
    """Seconds, and those of processor time, of a command in the system; `after` is not measured.

    The command and what comes after share one mount namespace, which is gone when both have ended.
    """
    times = root / "times"
    script = [
        "set -e",
        f"mount --bind {shlex.quote(str(root))} {shlex.quote(str(root))}",
        *(_mounted(root, path) for path in _shared()),
        f"mount -t proc proc {shlex.quote(str(root / 'proc'))}",
        f"mount --rbind /dev {shlex.quote(str(root / 'dev'))}",
        f"exec chroot {shlex.quote(str(root))} {shlex.join([sys.executable, '-c', _INSIDE, *_words(command, after)])}",
    ]
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(script)],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"},
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(command)} failed in the bare system:\n{done.stdout.decode()[-3000:]}")
    seconds, processor_s = map(float, times.read_text().split())
    return seconds, processor_s


_INSIDE = """
import resource, subprocess, sys, time
middle = sys.argv.index("--")
began = time.monotonic()
status = subprocess.run(sys.argv[1:middle]).returncode
seconds, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
open("/times", "w").write("%f %f" % (seconds, used.ru_utime + used.ru_stime))
if sys.argv[middle + 1:]:
    status = subprocess.run(sys.argv[middle + 1:]).returncode or status
sys.exit(status)
"""


def _words(command: tuple[str, ...], after: list[str] | None) -> list[str]:
    return [*command, "--", *(after or [])]


def _shared() -> list[Path]:
    """This machine's Python with its packages, glmforge, and where apt finds packages, and whom it trusts."""
    own = [Path(sys.base_prefix), Path(sys.prefix), ROOT, *(Path(path) for path in _APT if Path(path).exists())]
    linked = [Path(path) for path in sys.path if path.endswith(("site-packages", "/src")) and Path(path).is_dir()]
    found: list[Path] = []
    for path in sorted({path.resolve() for path in [*own, *linked]}):
        if not any(path.is_relative_to(above) for above in found):
            found.append(path)
    return found


def _mounted(root: Path, path: Path) -> str:
    target = shlex.quote(str(root) + str(path))
    make = f"mkdir -p {target}" if path.is_dir() else f"touch {target}"
    return f"{make} && mount --bind {shlex.quote(str(path))} {target} && mount -o remount,bind,ro {target}"


if __name__ == "__main__":
    main()
