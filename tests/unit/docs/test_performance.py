"""docs/performance.md shows what the code predicts and what was measured on the device that it names."""

import json
from pathlib import Path

import harness
import performance
import pytest

PAGE = Path(__file__).parents[3] / "docs" / "performance.md"


def test_the_page_says_that_nothing_is_measured_while_that_is_so() -> None:
    says = "Nothing of this project has run on CUDA yet" in PAGE.read_text(encoding="utf-8")
    assert says != (harness.RESULTS / "gpu_step.json").is_file()


@pytest.mark.parametrize(
    ("device", "dry", "status", "is_shown"),
    [
        ("NVIDIA H200", False, "ok", True),
        ("NVIDIA H100 80GB HBM3", False, "ok", False),
        ("NVIDIA H200", True, "ok", False),
        ("NVIDIA H200", False, "out of memory", False),
    ],
    ids=["of the device", "of another device", "dry", "failed"],
)
def test_measurements_go_to_the_tables_of_their_device(
    device: str, dry: bool, status: str, is_shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"forward_and_backward": 1.5, "clip": 0.0625, "update": 0.25}
    figure = {"status": status, "seconds": 1.875, "phases_s": parts, "kernels_s": {"attention": 0.5, "idle": 0.25}}
    figures = {"air-4k | glmforge, every Triton kernel, real routing": figure}
    content = {"device": {"name": device}, "dry": dry, "figures": figures}
    (tmp_path / "gpu_step.json").write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr(harness, "RESULTS", tmp_path)

    def cells(table: str) -> dict[str, str]:
        header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
        return {row[0]: row[header.index("measured")] for row in rows}

    shown = cells(performance.operations_table("air-4k", "H200 SXM"))
    expected = {performance.CLIP: "62.5", "forward and backward": "1,500", "optimizer": "250", "step": "1,875"}
    expected["all attention"] = "500"
    assert {name: cell for name, cell in shown.items() if cell} == (expected if is_shown else {})
    # 65,536 tokens in 1.875 s.
    assert ("34,953, 0." in performance.slices_table().split("| air-4k | H200 SXM |")[1].split("\n")[0]) == is_shown
