"""Environment scripts as bash runs them, on nodes whose /sys, /proc and /dev are made up of files."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from glmforge.runtime.cores import usable_cores
from glmforge_ops.environment.script import CHOICES, Form, Wanted, as_script
from helpers.packages import install_or_skip

BASH = shutil.which("bash") or "/bin/bash"
ROUTES = "Iface\tDestination\tGateway \tFlags\n"
GLOBAL_IPV6 = "20010db8000000000000000000000001 02 40 00 80 {}\n"
LINK_IPV6 = "fe800000000000000000000000000001 02 40 20 80 {}\n"
DEFAULT_IPV6 = f"{'0' * 32} 00 {'0' * 32} 00 fe80{'0' * 28} 00000400 00000001 00000000 00000003 {{}}\n"


class Node:
    """A machine: what its files say, and a script that reads them instead of the real ones."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("class/net", "class/infiniband", "net", "cgroup", "dev", "tmp", "bin"):
            (root / name).mkdir(parents=True)
        (root / "net/route").write_text(ROUTES)
        (root / "net/if_inet6").write_text("")
        (root / "net/ipv6_route").write_text("")
        self.interface("lo", state="unknown", ipv4="0000007F")

    def _write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        with (self.root / name).open("a") as file:
            file.write(text)

    def interface(
        self,
        name: str,
        *,
        state: str = "up",
        speed: int | None = None,
        ipv4: str | None = None,
        default: bool = False,
        ipv6: str | None = None,
        holds: tuple[str, ...] = (),
    ) -> None:
        """`ipv4`: the network it leads to, as /proc/net/route has it; `holds`: files that tell bonds and bridges."""
        self._write(f"class/net/{name}/operstate", f"{state}\n")
        if speed is not None:
            self._write(f"class/net/{name}/speed", f"{speed}\n")
        for file in holds:
            self._write(f"class/net/{name}/{file}", "")
        if default:
            self._write("net/route", f"{name}\t00000000\t0100000A\t0003\n")
        if ipv4 is not None:
            self._write("net/route", f"{name}\t{ipv4}\t00000000\t0001\n")
        if ipv6 is not None:
            self._write("net/if_inet6", ipv6.replace("{}", name))

    def port(
        self,
        device: str,
        *,
        layer: str = "InfiniBand",
        rate: str = "400 Gb/sec (4X NDR)",
        state: str = "4: ACTIVE",
        gids: Mapping[int, tuple[str, str]] | None = None,
    ) -> None:
        """`gids`: index -> address and kind."""
        at = f"class/infiniband/{device}/ports/1"
        self._write(f"{at}/state", f"{state}\n")
        self._write(f"{at}/link_layer", f"{layer}\n")
        self._write(f"{at}/rate", f"{rate}\n")
        for index, (gid, kind) in (gids or {}).items():
            self._write(f"{at}/gids/{index}", f"{gid}\n")
            if kind:
                self._write(f"{at}/gid_attrs/types/{index}", f"{kind}\n")

    def script(self, wanted: Wanted, form: Form = "bash") -> Path:
        text = as_script(wanted, form)
        for real, made_up in (
            ("/sys/class/", "class/"),
            ("/proc/net/", "net/"),
            ("/sys/fs/cgroup/", "cgroup/"),
            ("/dev/nvidia", "dev/nvidia"),
        ):
            text = text.replace(real, f"{self.root}/{made_up}")
        path = self.root / "env.sh"
        path.write_text(text)
        path.chmod(0o755)
        return path

    def run(
        self, wanted: Wanted, *, environment: Mapping[str, str] | None = None, form: Form = "bash"
    ) -> tuple[dict[str, str], str]:
        """What the script sets, sourced by a strict shell, and what it says on stderr."""
        source = f'set -euo pipefail; source "{self.script(wanted, form)}"; env -0'
        done = subprocess.run(
            [BASH, "-c", source], env=self.environment() | dict(environment or {}), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        pairs = (pair.partition("=") for pair in done.stdout.rstrip("\0").split("\0"))
        return {name: value for name, _, value in pairs}, done.stderr

    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "TMPDIR": str(self.root / "tmp")}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def gid(ipv4: str) -> str:
    return f"0000:0000:0000:0000:0000:ffff:{ipv4}"


V1, V2 = "IB/RoCE v1", "RoCE v2"
LINK_LOCAL = "fe80:0000:0000:0000:0001:0002:0003:0004"
ROCE = {0: (LINK_LOCAL, V1), 1: (LINK_LOCAL, V2), 2: (gid("0a00:0001"), V1), 3: (gid("0a00:0001"), V2), 4: ("", "")}


@pytest.mark.parametrize("form", ["bash", "slurm"])
@pytest.mark.parametrize("network", CHOICES)
def test_shellcheck_has_nothing_to_say(network, form: Form, tmp_path: Path) -> None:
    install_or_skip(["shellcheck"], ["shellcheck"])
    path = tmp_path / "env.sh"
    path.write_text(as_script(Wanted(network), form))
    done = subprocess.run(["shellcheck", "--severity=style", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_interface_of_the_default_route_is_taken(node: Node) -> None:
    node.interface("eth0", speed=10_000, ipv4="0000000A", default=True)
    node.interface("eth1", speed=100_000, ipv4="0001000A")
    found, said = node.run(Wanted("tcp"))
    assert (found["NCCL_SOCKET_IFNAME"], found["GLOO_SOCKET_IFNAME"]) == ("=eth0", "eth0")
    assert found["NCCL_SOCKET_FAMILY"] == "AF_INET"
    assert "NCCL_SOCKET_NTHREADS" not in found
    assert said == ""


def test_what_leads_to_no_other_node_is_passed_over(node: Node) -> None:
    for name in ("docker0", "br-12ab", "veth12", "virbr0", "cni0", "tun0", "wg0"):
        node.interface(name, speed=200_000, ipv4="000011AC", default=True)
    node.interface("eth0", speed=100_000, ipv4="0002000A", holds=("master",))  # a port of bond0
    node.interface("lan", speed=100_000, ipv4="0003000A", holds=("bridge",))
    node.interface("eth2", state="down", speed=100_000, ipv4="0004000A")
    node.interface("eth3", speed=100_000)  # without an address
    node.interface("eth4", speed=100_000, ipv6=LINK_IPV6)
    node.interface("bond0", speed=50_000, ipv4="0000000A", holds=("bonding",))
    found, _ = node.run(Wanted("tcp"))
    assert found["GLOO_SOCKET_IFNAME"] == "bond0"
    assert found["NCCL_SOCKET_NTHREADS"] == found["NCCL_NSOCKS_PERTHREAD"] == "4"


def test_without_a_default_route_the_fastest_is_taken(node: Node) -> None:
    node.interface("eth0", speed=1_000, ipv4="0000000A")
    node.interface("eth1", speed=25_000, ipv4="0001000A")
    assert node.run(Wanted("tcp"))[0]["GLOO_SOCKET_IFNAME"] == "eth1"


def test_an_interface_of_ipv6_alone(node: Node) -> None:
    node.interface("eth0", speed=25_000, ipv6=LINK_IPV6 + GLOBAL_IPV6)
    node._write("net/ipv6_route", DEFAULT_IPV6.replace("{}", "eth0"))
    found, _ = node.run(Wanted("tcp"))
    assert found["NCCL_SOCKET_FAMILY"] == "AF_INET6"
    assert found["GLOO_SOCKET_IFNAME"] == "eth0"


def test_the_way_to_the_master_comes_first(node: Node) -> None:
    node.interface("eth0", ipv4="0000000A", default=True)
    node.interface("eth1", ipv4="0001000A")
    ip = node.root / "bin/ip"
    ip.write_text('#!/bin/sh\n[ "$2" = route ] && echo "10.1.0.1 dev eth1 src 10.1.0.2 uid 0"\nexit 0\n')
    ip.chmod(0o755)
    path = {"MASTER_ADDR": "10.1.0.1", "PATH": f"{node.root}/bin:{os.environ['PATH']}"}
    assert node.run(Wanted("tcp"), environment=path)[0]["GLOO_SOCKET_IFNAME"] == "eth1"


def test_the_master_itself_takes_the_interface_of_its_address(node: Node) -> None:
    node.interface("eth0", ipv4="0000000A", default=True)
    node.interface("eth1", ipv4="0001000A")
    ip = node.root / "bin/ip"
    ip.write_text(
        '#!/bin/sh\ncase "$2" in\n'
        'address) echo "3: eth1    inet 10.1.0.1/24 scope global eth1" ;;\n'
        'route) echo "local 10.1.0.1 dev lo src 10.1.0.1" ;;\nesac\n'
    )
    ip.chmod(0o755)
    path = {"MASTER_ADDR": "10.1.0.1", "PATH": f"{node.root}/bin:{os.environ['PATH']}"}
    assert node.run(Wanted("tcp"), environment=path)[0]["GLOO_SOCKET_IFNAME"] == "eth1"


def test_a_node_without_a_network_says_so(node: Node) -> None:
    found, said = node.run(Wanted("tcp"))
    assert "NCCL_SOCKET_IFNAME" not in found
    assert "GLOO_SOCKET_IFNAME" not in found
    assert "no interface found that leads to other nodes" in said


def test_the_fastest_active_infiniband_ports_are_taken(node: Node) -> None:
    node.interface("ib0", ipv4="0000000A")
    for number in range(2):
        node.port(f"mlx5_{number}")
    node.port("mlx5_2", rate="200 Gb/sec (4X HDR)")  # storage
    node.port("mlx5_3", state="1: DOWN")
    node.port("mlx5_4", layer="Ethernet", rate="800 Gb/sec (8X NDR)")
    found, said = node.run(Wanted("infiniband"))
    assert found["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
    assert found["NCCL_NET"] == "IB"
    assert said == ""


@pytest.mark.parametrize(("network", "words"), [("infiniband", "no active InfiniBand"), ("roce", "no active RoCE")])
def test_a_node_without_rdma_says_so_and_fails_in_nccl(network, words: str, node: Node) -> None:
    node.interface("eth0", ipv4="0000000A")
    found, said = node.run(Wanted(network))
    assert words in said
    assert found["NCCL_NET"] == "IB"
    assert "NCCL_IB_HCA" not in found


def test_roce_leaves_the_address_to_nccl(node: Node) -> None:
    node.interface("eth0", ipv4="0000000A")
    node.port("mlx5_0", layer="Ethernet", gids=ROCE)
    found, said = node.run(Wanted("roce"))
    assert found["NCCL_IB_ADDR_FAMILY"] == "AF_INET"
    assert "NCCL_IB_GID_INDEX" not in found
    assert said == ""


def test_a_port_without_a_roce_v2_address_is_reported(node: Node) -> None:
    node.interface("eth0", ipv4="0000000A")
    node.port("mlx5_0", layer="Ethernet", gids={0: (LINK_LOCAL, V1), 1: (LINK_LOCAL, V2), 2: (gid("0a00:0001"), V1)})
    assert "mlx5_0:1 has no RoCE v2 address of AF_INET" in node.run(Wanted("roce"))[1]


def test_roce_over_ipv6_wants_an_address_that_routers_pass(node: Node) -> None:
    node.interface("eth0", ipv6=GLOBAL_IPV6)
    routed = "2001:0db8:0000:0000:0000:0000:0000:0001"
    node.port("mlx5_0", layer="Ethernet", gids={0: (LINK_LOCAL, V2), 6: (routed, V2)})
    found, said = node.run(Wanted("roce"))
    assert (found["NCCL_IB_ADDR_FAMILY"], said) == ("AF_INET6", "")


@pytest.mark.parametrize(
    ("layers", "expected"),
    [(("InfiniBand", "Ethernet"), ("IB", "=mlx5_0:1")), (("Ethernet",), ("IB", "=mlx5_0:1")), ((), ("Socket", None))],
)
def test_auto_takes_what_the_node_has(layers: tuple[str, ...], expected: tuple[str, str | None], node: Node) -> None:
    node.interface("eth0", ipv4="0000000A")
    for number, layer in enumerate(layers):
        node.port(f"mlx5_{number}", layer=layer, gids=ROCE)
    found, _ = node.run(Wanted("auto"))
    assert (found["NCCL_NET"], found.get("NCCL_IB_HCA")) == expected
    assert ("NCCL_IB_ADDR_FAMILY" in found) == (layers == ("Ethernet",))


def test_what_the_user_set_stays(node: Node) -> None:
    node.interface("eth0", ipv4="0000000A")
    own = {"NCCL_SOCKET_IFNAME": "ib0", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "3", "TRITON_CACHE_DIR": ""}
    found, _ = node.run(Wanted("tcp"), environment=own)
    assert {name: found[name] for name in own} == own
    assert found["GLOO_SOCKET_IFNAME"] == "eth0"


def test_what_the_shell_has_set_without_exporting_it_is_exported(node: Node) -> None:
    source = f'NCCL_DEBUG=INFO; source "{node.script(Wanted("tcp"))}"; printenv NCCL_DEBUG'
    done = subprocess.run([BASH, "-c", source], env=node.environment(), capture_output=True, text=True)
    assert done.stdout == "INFO\n"


@pytest.mark.parametrize("network", CHOICES)
def test_nothing_is_left_behind_in_the_shell(network, node: Node) -> None:
    node.interface("eth0", ipv4="0000000A")
    state = "set -o; shopt; declare -F; compgen -v | grep -i glmforge; trap"
    source = f'before=$({state}); source "{node.script(Wanted(network))}"; after=$({state}); [[ $before == "$after" ]]'
    done = subprocess.run([BASH, "-c", source], env=node.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_as_a_program_it_runs_a_command_with_the_variables(node: Node) -> None:
    node.interface("eth0", ipv4="0000000A")
    script = node.script(Wanted("tcp"))
    done = subprocess.run([script, "printenv", "NCCL_NET"], env=node.environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "Socket\n")
    alone = subprocess.run([script], env=node.environment(), capture_output=True, text=True)
    assert alone.returncode == 2
    assert "source this file" in alone.stderr


def test_another_shell_is_told(node: Node) -> None:
    done = subprocess.run(["sh", node.script(Wanted("tcp"))], env=node.environment(), capture_output=True, text=True)
    if Path("/bin/sh").resolve().name == "bash":
        pytest.skip("sh is bash here")
    assert (done.returncode, done.stderr) == (1, "env: needs bash\n")


def test_a_task_prolog_prints_what_slurm_takes(node: Node) -> None:
    node.interface("eth0", ipv4="0000000A")
    script = node.script(Wanted("auto"), "slurm")
    done = subprocess.run([script], env=node.environment() | {"NCCL_DEBUG": "INFO"}, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert all(re.fullmatch(r"export [A-Z_0-9]+=\S*", line) for line in lines)
    assert {"export NCCL_NET=Socket", "export NCCL_DEBUG=INFO", "export GLOO_SOCKET_IFNAME=eth0"} <= set(lines)


@pytest.mark.parametrize(
    ("cores", "gpus", "environment", "expected"),
    [
        (64, 8, {}, 8),
        (192, 8, {}, 16),
        (64, 0, {}, 64),
        (64, 8, {"LOCAL_WORLD_SIZE": "4"}, 16),
        (64, 0, {"SLURM_NTASKS_PER_NODE": "8"}, 8),
        (4, 8, {}, 1),
        (64, 8, {"SLURM_CPUS_PER_TASK": "12"}, 12),
        (8, 8, {"SLURM_LOCALID": "0", "SLURM_CPUS_ON_NODE": "64"}, 8),  # bound by srun
        (64, 8, {"SLURM_LOCALID": "0", "SLURM_CPUS_ON_NODE": "64"}, 8),  # not bound
        (64, 8, {"LOCAL_WORLD_SIZE": "many"}, 16),
    ],
)
def test_threads_are_the_cores_of_a_rank(
    cores: int, gpus: int, environment: dict[str, str], expected: int, node: Node
) -> None:
    nproc = node.root / "bin/nproc"
    nproc.write_text(f"#!/bin/sh\necho {cores}\n")
    nproc.chmod(0o755)
    for number in range(gpus):
        (node.root / f"dev/nvidia{number}").touch()
    (node.root / "dev/nvidiactl").touch()
    path = {"PATH": f"{node.root}/bin:{os.environ['PATH']}"}
    assert node.run(Wanted("tcp"), environment=path | environment)[0]["OMP_NUM_THREADS"] == str(expected)


@pytest.mark.parametrize(("quota", "expected"), [("max 100000", 64), ("250000 100000", 2), ("50000 100000", 1)])
def test_threads_keep_to_the_quota_of_the_container(quota: str, expected: int, node: Node) -> None:
    nproc = node.root / "bin/nproc"
    nproc.write_text("#!/bin/sh\necho 64\n")
    nproc.chmod(0o755)
    (node.root / "cgroup/cpu.max").write_text(f"{quota}\n")
    path = {"PATH": f"{node.root}/bin:{os.environ['PATH']}"}
    assert node.run(Wanted("tcp"), environment=path)[0]["OMP_NUM_THREADS"] == str(expected)


def test_cores_of_this_machine_are_those_that_glmforge_counts(tmp_path: Path) -> None:
    script = tmp_path / "env.sh"
    script.write_text(as_script(Wanted("tcp", ("eth0",))))
    environment = {"PATH": os.environ["PATH"], "LOCAL_WORLD_SIZE": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [BASH, script, "printenv", "OMP_NUM_THREADS"], env=environment, capture_output=True, text=True
    )
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    assert int(done.stdout) == min(max(1, int(usable_cores())), 16 if gpus else 10**6)


def test_the_cache_is_the_users_alone(node: Node) -> None:
    found, said = node.run(Wanted("tcp", ("eth0",)))
    cache = node.root / f"tmp/glmforge-cache-{os.geteuid()}"
    assert found["TRITON_CACHE_DIR"] == f"{cache}/triton"
    assert cache.stat().st_mode & 0o777 == 0o700
    assert said == ""
    cache.chmod(0o777)
    node.run(Wanted("tcp", ("eth0",)))
    assert cache.stat().st_mode & 0o777 == 0o700


def test_a_cache_that_somebody_else_laid_is_not_used(node: Node) -> None:
    (node.root / "others").mkdir()
    (node.root / f"tmp/glmforge-cache-{os.geteuid()}").symlink_to(node.root / "others")
    found, said = node.run(Wanted("tcp", ("eth0",)))
    assert "TRITON_CACHE_DIR" not in found
    assert "is not a directory of this user" in said
