"""A made-up run directory for tests of the report: curves are formulas with noise, nothing was trained."""

import json
from pathlib import Path

import numpy as np
import yaml

from glmforge.observe.balance import balance_metrics, bias_metrics, expert_load
from glmforge.observe.metrics import make_record
from glmforge.observe.record_files import JsonlFile

MODEL = {
    "num_hidden_layers": 8,
    "first_k_dense_replace": 1,
    "hidden_size": 256,
    "n_routed_experts": 32,
    "num_experts_per_tok": 4,
    "num_nextn_predict_layers": 1,
    "vocab_size": 8192,
}
MACHINE = {"cpu": "Synthetic CPU", "cores": 2, "memory_bytes": 24 << 30, "gpus": [], "os": "Linux 6.1 x86_64"}
TOKENS_PER_STEP = 4096


def write_synthetic_run(
    root: Path, *, num_steps: int = 600, killed_at: int | None = 372, evaluate: bool = True
) -> Path:
    """Write a run of two phases; `killed_at` adds a kill and a resume 20 steps before it."""
    root.mkdir(parents=True)
    (root / "config.yaml").write_text(yaml.safe_dump({"name": "synthetic", "model": MODEL, "optim": {"lr": 2.5e-4}}))
    info = {
        "name": "synthetic",
        "started": "2026-03-01T12:00:00Z",
        "git_revision": None,
        "versions": {"python": "3.11.2", "torch": "2.13.0"},
        "machine": MACHINE,
    }
    (root / "run.json").write_text(json.dumps(info))
    _write_metrics(root, num_steps)
    if evaluate:
        _write_evaluations(root, num_steps)
    if killed_at is not None:
        _write_events(root, killed_at)
    checkpoint = root / "checkpoints" / f"step-{num_steps:08d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "meta.json").write_text("{}")
    return root


def _write_metrics(root: Path, num_steps: int) -> None:
    rng = np.random.default_rng(0)
    bias_LE = rng.normal(0, 0.8, (8, 32))
    with JsonlFile(root / "metrics.jsonl") as file:
        for step in range(1, num_steps + 1):
            progress = step / num_steps
            rate_LE = np.exp(bias_LE * np.exp(-4 * progress) + rng.normal(0, 0.05, (8, 32)))
            counts_LE = rng.poisson(512 * rate_LE / rate_LE.mean(axis=1, keepdims=True))
            record = make_record(
                step=step,
                phase="general" if progress < 0.8 else "code",
                tokens=step * TOKENS_PER_STEP,
                samples=step * 16,
                loss=_loss(step) + rng.normal(0, 0.05),
                loss_mtp=_loss(step) * 1.12 + 0.2 + rng.normal(0, 0.06),
                loss_aux=1 + 0.3 * np.exp(-4 * progress),
                grad_norm=0.4 + 2 / step**0.5 * rng.lognormal(0, 0.2),
                lr=2.5e-4 * min(step / 40, 0.1 + 0.45 * (1 + np.cos(np.pi * progress))),
                tokens_per_second=9200 * rng.normal(1, 0.03),
                step_seconds=TOKENS_PER_STEP / 9200,
                router_bias_rate=1e-3,
                world_size=1,
                rss_bytes=900 << 20,
                batch_size=16 if progress < 0.2 else 32,
                seq_len=256,
                trained_tokens=256 * (16 if progress < 0.2 else 32) * 3 // 4,
                source_tokens={"web": 3000 * step, "books": 1000 * step},
                source_epochs={"web": 0.002 * step, "books": 0.01 * step},
                source_loss={"web": _loss(step) + 0.1, "books": _loss(step) - 0.3},
                expert_load=expert_load(counts_LE) if step % 100 == 0 or step == num_steps else None,
                checkpoint_seconds_blocked=0.1 if step % 100 == 1 else None,
                checkpoint_seconds_total=0.5 if step % 100 == 1 else None,
                checkpoint_bytes=1 << 20 if step % 100 == 1 else None,
                **balance_metrics(counts_LE, by_layer=True),
                **bias_metrics(0.1 * progress * np.linspace(0.5, 1, 8), np.full(8, 1e-3)),
            )
            file.write(record)


def _write_evaluations(root: Path, num_steps: int) -> None:
    with JsonlFile(root / "evaluation.jsonl") as file:
        for step in range(0, num_steps + 1, max(1, num_steps // 8)):
            for source, gap in (("code", 0.0), ("prose", 0.25)):
                nll = _loss(max(step, 1)) + 0.05 + gap
                file.write(
                    make_record(
                        step=step,
                        tokens=step * TOKENS_PER_STEP,
                        source=source,
                        nll=nll,
                        bits_per_byte=nll / np.log(2) / 3.4,
                        accuracy=0.5 * step / num_steps,
                        num_tokens=65536,
                        num_bytes=222_822,
                        mtp_acceptance=0.6 * step / num_steps,
                    )
                )


def _write_events(root: Path, killed_at: int) -> None:
    resumed_at = killed_at - 20
    with JsonlFile(root / "events.jsonl") as file:
        for time, step, event, detail in (
            ("2026-03-01T12:00:00Z", 0, "started", ""),
            ("2026-03-01T12:03:10Z", killed_at, "killed", "SIGKILL"),
            ("2026-03-01T12:03:19Z", resumed_at, "resumed", "same code, libraries and machine"),
        ):
            file.write({"time": time, "step": step, "event": event, "detail": detail})


def _loss(step: int) -> float:
    return 2.1 + 6.9 * float(np.exp(-((step / 60) ** 0.6)))
