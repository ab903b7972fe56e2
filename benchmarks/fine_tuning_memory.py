"""What a GPU needs in the packaged fine-tuning runs, and what frozen weights in bf16 save: closed forms and dry runs.

    python benchmarks/fine_tuning_memory.py                # all of them, some five minutes on two idle cores
    python benchmarks/fine_tuning_memory.py --only 355b    # those whose name has "355b"; the others stay as they were

A guide says that LoRA of GLM-4.5-Air at 16,384 tokens takes 109 GB of each H200. Beside it stand the packaged runs, and
LoRA of Air with other settings: frozen weights in fp32, one copy of the model over both nodes, experts that are
gathered instead of tokens that travel, MTP layers that are run.
"""

import time
from typing import Any

from harness import arguments, result
from record import write_result

from glmforge.config import load_config
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.memory.purposes import Purpose
from glmforge.plan.stages.stage import stage_of

GUIDE_BYTES = 109e9
PRESETS = {
    "lora_air_2x8h200": (16, "h200"),
    "lora_air_8x80gb": (8, "h100-80gb"),
    "lora_355b_2x8h200": (16, "h200"),
    "lora_355b_4x8h100": (32, "h100-80gb"),
    "sft_air_8x8h100": (64, "h100-80gb"),
}
"""GPUs, and which."""
_FP32, _ONE_COPY = "precision.frozen=fp32", ("parallel.dp_replicate=1", "parallel.dp_shard=16")
OTHERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "air_8_fp32": ("lora_air_8x80gb", (_FP32,)),
    "air_8_gathered": ("lora_air_8x80gb", ("parallel.ep=1",)),
    "air_8_mtp": ("lora_air_8x80gb", ("phases.0.mtp_loss_weight=0.1",)),
    "air_16_one_copy": ("lora_air_2x8h200", _ONE_COPY),
    "air_16_one_copy_fp32": ("lora_air_2x8h200", (*_ONE_COPY, _FP32)),
}
"""Preset, and what is set otherwise."""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="only runs whose name has this; the others stay as they were")
    args = parser.parse_args()
    wanted = {name: (name, ()) for name in PRESETS} | OTHERS
    code = ["src/glmforge/dryrun", "src/glmforge/parallel", "src/glmforge/model", "src/glmforge/plan/memory"]
    code += ["src/glmforge/adapt", "src/glmforge/config"]
    runs = result("fine_tuning_memory").get("runs", {})
    for name, run in wanted.items():
        if args.only in name:
            runs[name] = _measure(*run)
            in_order = {name: runs[name] for name in wanted if name in runs}
            content = {"guide_bytes": GUIDE_BYTES, "runs": in_order}
            write_result("fine_tuning_memory", content, code=code, out=args.out)


def _measure(preset: str, settings: tuple[str, ...]) -> dict[str, Any]:
    from glmforge.dryrun.run import dry_run  # the table needs no torch

    world_size, gpu = PRESETS[preset]
    config = load_config(preset, settings)
    started = time.perf_counter()
    found = dry_run(config, world_size)
    (kind,) = found.classes
    closed, room = estimate_memory(config, found.layout, stage_of(config)), find_machine(gpu).accelerator.memory_bytes
    row = {
        "preset": preset,
        "settings": list(settings),
        "gpus": world_size,
        "seq_len": config.phases[0].seq_len,
        "peak_bytes": found.peak,
        "share_of_gpu": found.peak / room,
        "weight_bytes": kind.step.at_peak[Purpose.WEIGHTS],
        "at_peak": {str(purpose): kind.step.at_peak[purpose] for purpose in Purpose},
        "closed_form_bytes": closed.peak,
        "closed_form_at_peak": {str(purpose): closed.fullest.at_peak[purpose] for purpose in Purpose},
        "error": closed.peak / found.peak - 1,
        "seconds": round(time.perf_counter() - started, 1),
    }
    print(
        f"{' '.join((preset, *settings))}: {row['peak_bytes'] / 1e9:.1f} GB, {row['share_of_gpu']:.0%} of the GPU, "
        f"weights {row['weight_bytes'] / 1e9:.1f}; closed form {row['closed_form_bytes'] / 1e9:.1f} "
        f"({row['error']:+.1%}); {row['seconds']} s",
        flush=True,
    )
    return row


if __name__ == "__main__":
    main()
