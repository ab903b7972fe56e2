"""Metrics of GPUs from a library that stands in for the driver's, under the real nvidia-ml-py."""

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from helpers.fake_node import compile_nvml

STATE = {
    "gpus": 2, "0.uuid": "GPU-aaa", "0.utilization": 93, "0.memory_total": 80 << 30, "0.memory_used": 60 << 30,
    "0.temperature": 61, "0.power_usage": 412_500, "0.ecc_corrected": 7, "0.ecc_uncorrected": 1, "0.throttle": 0x04,
    "1.uuid": "GPU-bbb", "1.throttle": 0x24, "1.xid": 79,
}  # fmt: skip
Series = dict[tuple[str, tuple[str, ...]], float]


@contextmanager
def exporting(directory: Path, state: dict[str, object]) -> Iterator[str]:
    """`glmforge monitor gpu` on the library in `directory`; its address."""
    write(directory, state)
    environment = os.environ | {"LD_LIBRARY_PATH": str(directory), "FAKE_NVML_STATE": str(directory / "state")}
    command = [sys.executable, "-m", "glmforge", "monitor", "gpu", "--port", "0"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found is not None, line
        yield found[0]
    finally:
        process.terminate()
        assert process.wait(60) == 143


def write(directory: Path, state: dict[str, object]) -> None:
    (directory / "new").write_text("".join(f"{key} {value}\n" for key, value in state.items()))
    (directory / "new").rename(directory / "state")


def scrape(address: str) -> Series:
    with urllib.request.urlopen(address, timeout=60) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.pop("hostname")
            labels = (sample.labels.get(key) for key in ("gpu", "uuid", "type", "reason"))
            found[sample.name, tuple(value for value in labels if value is not None)] = sample.value
    return found


def wait_for(address: str, key: tuple[str, tuple[str, ...]], value: float) -> Series:
    """Until the thread that waits for events has heard; bounded by the scrapes' time."""
    for _ in range(1000):
        if (found := scrape(address)).get(key) == value:
            return found
    raise AssertionError(f"{key} is {found.get(key)}")


def test_series_of_cards_that_answer_and_of_one_that_falls_off_the_bus(tmp_path: Path) -> None:
    compile_nvml(tmp_path)
    with exporting(tmp_path, STATE) as address:
        found = wait_for(address, ("nvidia_gpu_xid", ("1", "GPU-bbb")), 79)
        first, second = ("0", "GPU-aaa"), ("1", "GPU-bbb")
        expected = {
            ("nvidia_gpu_utilization", first): 93,
            ("nvidia_gpu_memory_used_bytes", first): 60 << 30,
            ("nvidia_gpu_memory_total_bytes", first): 80 << 30,
            ("nvidia_gpu_temperature_celsius", first): 61,
            ("nvidia_gpu_power_watts", first): 412.5,
            ("nvidia_gpu_ecc_errors_total", (*first, "corrected")): 7,
            ("nvidia_gpu_ecc_errors_total", (*first, "uncorrected")): 1,
            ("nvidia_gpu_xid", first): 0,
            ("nvidia_gpu_throttled", first): 0,
            ("nvidia_gpu_throttled", second): 1,
            ("nvidia_gpu_throttle_reason", (*first, "power_cap")): 1,
            ("nvidia_gpu_throttle_reason", (*second, "temperature")): 1,
            ("nvidia_gpu_up", second): 1,
        }
        assert {key: found.get(key) for key in expected} == expected
        assert ("nvidia_gpu_power_watts", second) not in found  # the card does not know it
        write(tmp_path, STATE | {"1.lost": 15, "0.temperature": 62})
        found = scrape(address)
        assert found["nvidia_gpu_up", second] == 0
        assert found["nvidia_gpu_xid", second] == 79
        assert ("nvidia_gpu_throttled", second) not in found
        assert found["nvidia_gpu_temperature_celsius", first] == 62


def test_an_old_driver_gives_what_it_has(tmp_path: Path) -> None:
    compile_nvml(tmp_path, "-DOLD_DRIVER")
    with exporting(tmp_path, STATE) as address:
        found = scrape(address)
    assert found["nvidia_gpu_power_watts", ("0", "GPU-aaa")] == 412.5
    assert found["nvidia_gpu_throttled", ("1", "GPU-bbb")] == 1  # by the function's old name
    assert found["nvidia_gpu_xid", ("1", "GPU-bbb")] == 0  # it has no events


def test_a_machine_without_a_driver_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "glmforge", "monitor", "gpu", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert done.stdout + done.stderr == (
        "glmforge: NVML: NVML Shared Library Not Found; run this on a machine with an NVIDIA driver\n"
    )
