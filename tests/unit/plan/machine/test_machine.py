"""Machines by name and by description, and what their links take."""

from pathlib import Path

import pytest

from glmforge.errors import ConfigError
from glmforge.plan.machine.collectives import Group, LinkBytes, collective_seconds, link_bytes
from glmforge.plan.machine.hardware import ACCELERATORS, ALIASES, accelerator_named
from glmforge.plan.machine.machine import Machine, find_machine
from glmforge.plan.machine.measured import MEASURED_POINTS, CollectivePoint
from glmforge.plan.machine.provenance import Provenance, least_sure


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("h100-80gb", "H100 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("h800", "H800 SXM"),
        ("rtx 4090", "RTX 4090"),
    ],
)
def test_names(name: str, row: str) -> None:
    assert find_machine(name).accelerator.name == row


def test_every_alias_and_every_measurement_is_of_a_row() -> None:
    names = {row.name for row in ACCELERATORS}
    assert set(ALIASES.values()) | MEASURED_POINTS.keys() <= names
    for row in ACCELERATORS:
        assert accelerator_named(row.name) == row


def test_an_unknown_gpu_lists_the_known_and_how_to_describe_one() -> None:
    with pytest.raises(ConfigError, match="--gpu: 'q100' is unknown; choose one of A100 SXM 40GB"):
        find_machine("q100")


def test_descriptions(tmp_path: Path) -> None:
    gpu, network = tmp_path / "gpu.yaml", tmp_path / "network.yaml"
    gpu.write_text("name: Ours\nbf16_tflops: 500\nmemory_gb: 96\nmemory_gb_per_s: 4000\nnvlink_gb_per_s: 600\n")
    network.write_text("name: fabric\ngbits_per_node: 800\nlatency_us: 4\n")
    machine = find_machine(str(gpu), str(network), 4)
    assert (machine.accelerator.bf16_flops, machine.accelerator.nvlink_bandwidth) == (500e12, 300e9)
    assert machine.link_bandwidth == 25e9
    assert machine.network.latency == pytest.approx(4e-6)
    assert machine.compute_provenance == Provenance.ASSUMED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: Ours\nbf16_tflops: -5\nmemory_gb: 96\nmemory_gb_per_s: 4000\n", "bf16_tflops"),
        ("name: Ours\nbf16_tflop: 5\nmemory_gb: 96\nmemory_gb_per_s: 4000\n", "did you mean 'bf16_tflops'"),
        ("- 1\n", "mapping"),
        ("name: !!python/object:os.system x\n", "tag"),
        ('name: "a\\u001b[2J"\nbf16_tflops: 5\nmemory_gb: 96\nmemory_gb_per_s: 4000\n', "name"),
        ("a: &a [x, x]\nb: [*a, *a]\n", "alias|unknown key"),
        ("x: " + "y" * 70_000, "bytes"),
    ],
)
def test_hostile_descriptions_are_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "gpu.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        find_machine(str(path))
    assert "\x1b" not in str(error.value)


def test_a_network_needs_one_bandwidth(tmp_path: Path) -> None:
    path = tmp_path / "network.yaml"
    path.write_text("name: fabric\n")
    with pytest.raises(ConfigError, match="give gbits_per_gpu or gbits_per_node"):
        find_machine("h100", str(path))


@pytest.mark.parametrize(
    ("kind", "group", "sent"),
    [
        ("all_gather", Group(8, 8), LinkBytes(7 / 8, 0)),
        ("all_gather", Group(64, 8), LinkBytes(63 / 64, 63 / 64 / 8)),  # into each node once, over 8 adapters
        ("reduce_scatter", Group(16, 1), LinkBytes(0, 15 / 16)),
        ("all_reduce", Group(2, 1), LinkBytes(0, 1)),
        ("all_to_all", Group(32, 8), LinkBytes(7 / 32, 24 / 32)),
        ("send", Group(4, 1), LinkBytes(0, 1)),
        ("all_gather", Group(1, 1), LinkBytes(0, 0)),
    ],
)
def test_bytes_over_links_by_hand(kind, group: Group, sent: LinkBytes) -> None:
    assert link_bytes(kind, 1.0, group) == pytest.approx(sent)


def test_small_collectives_take_their_latency() -> None:
    machine = find_machine("h100")
    seconds = [collective_seconds("all_gather", size, Group(64, 8), machine) for size in (8, 8_000, 8_000_000_000)]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.01)
    assert seconds[0] > 10e-6
    assert seconds[2] == pytest.approx(63 / 64 * 8e9 / (0.8 * 450e9), rel=0.01)


def test_measured_collectives_take_precedence() -> None:
    points = tuple(CollectivePoint("all_gather", 4, 4, size, seconds) for size, seconds in ((1000, 1.0), (3000, 2.0)))
    known = find_machine("h100")
    machine = Machine(known.accelerator, known.network, 4, points)
    group = Group(4, 4)
    found = [collective_seconds("all_gather", size, group, machine) for size in (10, 1000, 2000, 3000, 6000)]
    assert found == pytest.approx([1.0, 1.0, 1.5, 2.0, 4.0])
    assert collective_seconds("all_to_all", 1000, group, machine) < 1.0
    assert machine.link_provenance == Provenance.CALIBRATED


def test_a_figure_is_as_sure_as_its_least_sure_part() -> None:
    assert least_sure([Provenance.MEASURED, Provenance.ASSUMED, Provenance.CALIBRATED]) == Provenance.ASSUMED
    assert least_sure([]) == Provenance.MEASURED
