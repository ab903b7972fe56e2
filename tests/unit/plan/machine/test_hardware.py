import pytest

from glmforge.plan.machine.hardware import ACCELERATORS, find_accelerator


@pytest.mark.parametrize(
    ("device_name", "row"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB"),
        ("A100-SXM4-40GB", "A100 SXM 40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H20", "H20 96GB"),
        ("NVIDIA H20-3e", "H20 141GB"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_known_devices(device_name: str, row: str) -> None:
    found = find_accelerator(device_name)
    assert found is not None
    assert found.name == row


@pytest.mark.parametrize(
    "device_name",
    [
        *("NVIDIA GeForce RTX 4090 D", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H100", "NVIDIA L40"),
        *("NVIDIA B300 SXM6 AC", "NVIDIA Graphics Device", "cpu", ""),
    ],
)
def test_what_is_not_in_the_table_is_not_guessed(device_name: str) -> None:
    assert find_accelerator(device_name) is None


@pytest.mark.parametrize(
    ("device_name", "bf16", "fp8", "memory", "bandwidth"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12, None, 80e9, 2.039e12),
        ("NVIDIA H100 80GB HBM3", 989.4e12, 1978.9e12, 80e9, 3.35e12),
        ("NVIDIA H20", 148e12, 296e12, 96e9, 4e12),
        ("NVIDIA B200", 2250e12, 4500e12, 180e9, 7.7e12),
    ],
)
def test_figures_in_plain_units(
    device_name: str, bf16: float, fp8: float | None, memory: float, bandwidth: float
) -> None:
    row = find_accelerator(device_name)
    assert row is not None
    assert (row.bf16_flops, row.fp8_flops, row.memory_bytes, row.memory_bandwidth) == (bf16, fp8, memory, bandwidth)


@pytest.mark.parametrize("row", ACCELERATORS, ids=lambda row: row.name)
def test_every_row_is_plausible(row) -> None:
    # fp8 runs at twice the dense rate of bf16 on every device that has it: a figure with sparsity would break this.
    assert row.fp8_flops is None or row.fp8_flops == pytest.approx(2 * row.bf16_flops, rel=0.02)
    # More than 30 FLOPs can be done per byte read, and no device does 500: one wrong unit would fall outside.
    assert 30 < row.bf16_flops / row.memory_bandwidth < 500
    assert 20e9 < row.memory_bytes < 200e9
    assert row.source


def test_names_of_rows_are_different() -> None:
    assert len({row.name for row in ACCELERATORS}) == len(ACCELERATORS)
