"""How a measurement on a GPU becomes what "auto" takes."""

import importlib.util
import json
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernel_choices", ROOT / "scripts/kernel_choices.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(implementation: str, times_as_fast: float, noise: float = 0.02) -> dict[str, object]:
    return {"implementation": implementation, "times_as_fast": times_as_fast, "noise": noise}


FASTEST = {
    "router | Air": found("triton", 3.0),
    "router | 355B": found("triton", 2.5),
    "permute | Air, there": found("triton", 2.0),
    "permute | Air, back": found("compiled", 1.3),
    "swiglu | Air": found("triton", 1.01),
    "rms_norm | Air": found("liger", 1.4),
    "attention | Air": found("varlen", 4.0),
    "copy | 1 GiB": found("triton", 2.0),
}


def test_an_operation_needs_one_clear_winner_at_every_size(script: ModuleType) -> None:
    assert script.choices(FASTEST) == {"router": ("triton", 2.5)}


def test_entries_of_other_devices_are_kept(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, results = tmp_path / "measured.toml", tmp_path / "gpu_kernels.json"
    other = '["NVIDIA H100"]\nswiglu = { implementation = "triton", speedup = 1.5, torch = "2.11.0" }\n'
    measured.write_text(f"# Why.\n\n{other}", "utf-8")
    monkeypatch.setattr(script, "MEASURED", measured)
    content = {
        "dry": False,
        "device": {"name": "NVIDIA H200"},
        "versions": {"torch": "2.11.0+cu130"},
        "fastest": FASTEST,
    }
    results.write_text(json.dumps(content), "utf-8")
    script.main(results)
    entry = {"implementation": "triton", "speedup": 2.5, "torch": "2.11.0+cu130"}
    assert tomllib.loads(measured.read_text("utf-8")) == tomllib.loads(other) | {"NVIDIA H200": {"router": entry}}
    assert measured.read_text("utf-8").startswith("# Why.\n")
    results.write_text(json.dumps(content | {"dry": True}), "utf-8")
    with pytest.raises(SystemExit, match="a dry run measures nothing"):
        script.main(results)
