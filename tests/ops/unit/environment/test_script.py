"""Environment scripts: the same text every time, of the chosen rows; wrong requests are one line."""

from pathlib import Path

import pytest

from glmforge.errors import ConfigError
from glmforge_ops.environment.script import CHOICES, Choice, Form, Wanted, as_script
from glmforge_ops.environment.table import VARIABLES

GOLDEN = Path(__file__).parent / "golden"
WANTED: dict[str, tuple[Wanted, Form]] = {
    **{f"{network}.sh": (Wanted(network), "bash") for network in CHOICES},
    "named.sh": (Wanted("infiniband", ("ib0", "ib1"), ("mlx5_0", "mlx5_1:2")), "bash"),
    "slurm.sh": (Wanted("auto"), "slurm"),
}


@pytest.mark.parametrize("name", WANTED)
def test_scripts_are_those_of_the_golden_files(name: str) -> None:
    """After a wanted change: PYTHONPATH=tests python tests/ops/unit/environment/test_script.py writes them."""
    wanted, form = WANTED[name]
    assert as_script(wanted, form) == (GOLDEN / name).read_text(encoding="utf-8")


def test_the_golden_files_are_these() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == WANTED.keys()


@pytest.mark.parametrize("network", ["infiniband", "roce", "tcp"])
def test_a_script_sets_the_rows_of_its_network(network: Choice) -> None:
    text = as_script(Wanted(network))
    for row in VARIABLES:
        expected = row.is_set and row.is_for(network)  # type: ignore[arg-type]
        is_set = f"_glmforge_export {row.name} " in text
        others = [other for other in VARIABLES if other.name == row.name and other is not row]
        assert is_set == expected or others, row.name


def test_a_script_says_what_wrote_it() -> None:
    text = as_script(Wanted("roce", ("eth1",), ("mlx5_0",)), "slurm")
    assert "#   glmforge cluster env --network roce --interface eth1 --device mlx5_0 --shell slurm\n" in text


def test_functions_that_are_not_called_are_left_out() -> None:
    assert "_glmforge_rdma_ports" not in as_script(Wanted("tcp"))
    assert "_glmforge_socket_threads" not in as_script(Wanted("infiniband"))
    assert "_glmforge_find_interface" not in as_script(Wanted("tcp", ("eth0",)))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"network": "ethernet"}, "unknown network 'ethernet'"),
        ({"interfaces": ("eth0; rm -rf /",)}, "invalid interface name"),
        ({"interfaces": ("",)}, "invalid interface name"),
        ({"interfaces": ("a" * 16,)}, "invalid interface name"),
        ({"network": "roce", "devices": ("mlx5_0$(id)",)}, "invalid RDMA device"),
        ({"network": "tcp", "devices": ("mlx5_0",)}, "does not use RDMA devices"),
    ],
)
def test_wrong_requests_are_one_line(wanted: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        Wanted(**wanted)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


if __name__ == "__main__":
    for name, (wanted, form) in WANTED.items():
        (GOLDEN / name).write_text(as_script(wanted, form), encoding="utf-8")
