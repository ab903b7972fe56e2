"""Forty attacks of a program on the machine that runs it, one for each way out that the sandbox closes.

A program prints `GOT IN` when its attack succeeds. Each is bounded, whatever the sandbox does: no endless fork, and
nothing that would harm the machine of whoever runs these tests without one.
"""

import os
import socket
import subprocess
import sys

import pytest

from glmforge.verify import sandbox
from glmforge.verify.sandbox import OUTPUT_BYTES, run_program

pytestmark = pytest.mark.skipif(not sandbox._has_sandbox(), reason="bubblewrap is not installed, or may not run")

PROLOGUE = """
import ctypes, errno, os, resource, signal, socket, stat, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
def got_in(*what): print("GOT IN", *what, flush=True)
"""

REFUSED = {
    # Network.
    "a server on this machine": "socket.create_connection(('127.0.0.1', PORT), 2); got_in()",
    "an address outside": "socket.create_connection(('1.1.1.1', 53), 2); got_in()",
    "a name server": "socket.getaddrinfo('example.com', 80); got_in()",
    "a datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 9)); got_in()",
    "raw packets": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); got_in()",
    "an abstract socket": "s = socket.socket(socket.AF_UNIX); s.connect('\\0' + ABSTRACT); got_in()",
    "a socket of the machine": (
        "[got_in(p) for p in ('/run/docker.sock', '/var/run/docker.sock', '/run/dbus/system_bus_socket',"
        " '/run/systemd/private') if os.path.exists(p)]"
    ),
    "an interface": "got_in() if [n for _, n in socket.if_nameindex() if n != 'lo'] else None",
    # Files.
    "a file of the user": "got_in(open(SECRET).read())",
    "passwords": "[got_in(p) for p in ('/etc/passwd', '/etc/shadow', '/etc/hosts') if os.path.exists(p)]",
    "homes and keys": (
        "[got_in(p) for p in ('/root', '/home', '/var/log', '/mnt', HOME, HOME + '/.ssh') if os.path.exists(p)]"
    ),
    "the library of this package": "got_in() if os.path.exists(SOURCE) and not SOURCE.startswith('/usr/') else None",
    "a link to a secret": "os.symlink(SECRET, '/tmp/link'); got_in(open('/tmp/link').read())",
    "the way up": "got_in(open('../' * 40 + SECRET[1:]).read())",
    "the root of another process": "got_in(open('/proc/1/root' + SECRET).read())",
    "the root before the pivot": "got_in(os.listdir('/oldroot')) if os.listdir('/oldroot') else None",
    "a hard link": "os.link('/usr/bin/env', '/tmp/env'); got_in()",
    "a file left open": (
        "[got_in(n, os.readlink(f'/proc/self/fd/{n}')) for n in map(int, os.listdir('/proc/self/fd'))"
        " if n > 2 and os.path.exists(f'/proc/self/fd/{n}')"
        " and not os.readlink(f'/proc/self/fd/{n}').startswith('/proc/')]"
    ),
    "writing to /usr": "open('/usr/new', 'w'); got_in()",
    "writing to the root": "open('/new', 'w'); got_in()",
    "replacing the interpreter": "os.rename(os.path.realpath(sys.executable), '/tmp/python'); got_in()",
    "remounting /usr": "libc.mount(b'none', b'/usr', None, 4096 | 32, None) or got_in()",
    # The kernel's own.
    "the kernel's settings": "open('/proc/sys/kernel/core_pattern', 'w').write('|/tmp/x'); got_in()",
    "the kernel's requests": "open('/proc/sysrq-trigger', 'w').write('h'); got_in()",
    "the cgroup": "os.mkdir('/sys/fs/cgroup/escape'); got_in()",
    "the memory of the machine": "got_in() if os.path.exists('/dev/mem') or os.path.exists('/proc/kcore') and "
    "open('/proc/kcore', 'rb').read(4) else None",
    "a disk": "os.mknod('/tmp/disk', stat.S_IFBLK | 0o600, os.makedev(8, 0)); open('/tmp/disk', 'rb'); got_in()",
    "devices": (
        "[got_in(n) for n in os.listdir('/dev') if n.startswith(('sd', 'nvme', 'vd', 'nvidia', 'kvm', 'fuse', 'dri'))]"
    ),
    "mounting": "libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None) or got_in()",
    "a user namespace with rights of its own": "libc.unshare(0x10000000) or got_in()",
    "joining a namespace": "fd = os.open('/proc/1/ns/net', 0); libc.setns(fd, 0) or "
    "(socket.create_connection(('127.0.0.1', PORT), 2), got_in())",
    "another root": "os.chroot('/tmp'); got_in()",
    # Processes and rights.
    "root": "os.setuid(0); got_in()",
    "a setuid program": (
        "os.path.exists('/usr/bin/su') and subprocess.run(['/usr/bin/su', '-c', 'id -u'], stdin=subprocess.DEVNULL,"
        " capture_output=True, check=True) and got_in()"
    ),
    "rights won back": "libc.prctl(39, 0, 0, 0, 0) == 1 or got_in('no_new_privs is off')",
    "capabilities": (
        "got_in() if any(int(l.split()[1], 16) for l in open('/proc/self/status') if l.startswith('CapEff')) else None"
    ),
    "a signal to the parent": "os.kill(PARENT, 0); got_in()",
    "a signal to everybody": "os.kill(PARENT, signal.SIGTERM); os.kill(-1, 0); got_in()",
    "watching a process": "libc.ptrace(16, PARENT, 0, 0) == -1 or got_in()",
    "processes of the machine": (
        "pids = [p for p in os.listdir('/proc') if p.isdigit()]; got_in(pids) if len(pids) > 8 else None"
    ),
    "the environment": "[got_in(k) for k in os.environ if k not in ('PATH', 'PYTHONHASHSEED', 'PWD', 'LC_CTYPE')]",
    "the parent's environment": "got_in(open(f'/proc/{PARENT}/environ').read())",
    "shared memory of the machine": "got_in(os.listdir('/dev/shm')) if os.path.exists('/dev/shm/' + SHARED) else None",
    # Limits.
    "memory": "x = [bytearray(1 << 26) for _ in range(40)]; got_in()",
    "memory in a file": "import mmap; m = mmap.mmap(-1, 3 << 30); got_in()",
    "a limit raised": "resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); got_in()",
    "a large file": "open('/tmp/x', 'wb').write(bytes(64 << 20)); got_in()",
    "many files": "[open(f'/tmp/{n}', 'wb').write(bytes(9 << 20)) for n in range(60)]; got_in()",
    "many files in shared memory": "[open(f'/dev/shm/{n}', 'wb').write(bytes(9 << 20)) for n in range(60)]; got_in()",
    "writing to /dev": "open('/dev/new', 'w'); got_in()",
    "a core file": "got_in() if resource.getrlimit(resource.RLIMIT_CORE)[1] else None",
}

NUM_FORKS = 100
ENDED = {
    "a loop": "while True: pass",
    "sleep without end": "signal.pause()",
    "deaf to signals": "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]\nwhile True: signal.pause()",
    "threads that hang": "[threading.Thread(target=signal.pause).start() for _ in range(10)]\nsignal.pause()",
    "a session of its own": "if os.fork() == 0:\n    os.setsid()\n    signal.pause()\nsignal.pause()",
}


def test_there_are_forty():
    assert len(REFUSED) + len(ENDED) + 2 >= 40


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """What an attacker might know of the machine, as the program's first line; and servers to be reached."""
    secret = tmp_path_factory.mktemp("secret") / "file"
    secret.write_text("secret")
    abstract, shared = f"glmforge-attack-{os.getpid()}", f"glmforge-attack-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as local,
    ):
        local.bind(f"\0{abstract}")
        local.listen()
        shared_file = os.open(f"/dev/shm/{shared}", os.O_CREAT | os.O_RDWR, 0o600)
        values = {
            "PORT": server.getsockname()[1],
            "ABSTRACT": abstract,
            "SHARED": shared,
            "SECRET": str(secret),
            "PARENT": os.getpid(),
            "HOME": os.path.expanduser("~"),  # noqa: PTH111
            "SOURCE": sandbox.__file__,
        }
        yield PROLOGUE + "".join(f"{name} = {value!r}\n" for name, value in values.items())
        os.close(shared_file)
        os.unlink(f"/dev/shm/{shared}")  # noqa: PTH108


@pytest.mark.parametrize("attack", REFUSED)
def test_refused(attack, known, monkeypatch):
    monkeypatch.setenv("API_KEY", "secret")
    finished = run_program(known + REFUSED[attack], timeout_s=60.0)
    assert finished.reason == "exit"
    assert "GOT IN" not in finished.output, finished
    assert "SyntaxError" not in finished.errors, finished
    assert "NameError" not in finished.errors, finished


@pytest.mark.parametrize("attack", ENDED)
def test_ended(attack, known):
    finished = run_program(known + ENDED[attack], timeout_s=1.0)
    assert finished.reason == "time", finished
    assert not finished.is_ok


def test_forks_are_limited(known):
    """At most `NUM_FORKS` children, each of which waits to be killed."""
    program = f"""
children = 0
try:
    while children < {NUM_FORKS}:
        if os.fork() == 0:
            signal.pause()
            os._exit(0)
        children += 1
except OSError:
    pass
print(children, flush=True)
os._exit(0)
"""
    finished = run_program(known + program, timeout_s=60.0)
    assert 0 < int(finished.output) < NUM_FORKS
    assert "GOT IN" not in finished.output


def test_output_is_limited(known):
    finished = run_program(known + "for _ in range(10_000): os.write(1, b'x' * 65536)", timeout_s=60.0)
    assert not finished.is_ok
    assert len(finished.output) <= OUTPUT_BYTES


@pytest.mark.parametrize("attack", ["a server on this machine", "a file of the user", "the environment"])
def test_the_attacks_would_succeed_outside(attack, known):
    """What the sandbox refuses is not refused for another reason."""
    program = known + REFUSED[attack]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "GOT IN" in done.stdout
