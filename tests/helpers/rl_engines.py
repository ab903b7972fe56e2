"""A policy, and servers that sample its answers, on any layout."""

import ctypes
import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from glmforge.adapt.lora import adapters_of
from glmforge.backend.native import NativeBackend
from glmforge.config.layout import resolve_layout
from glmforge.config.rl_engine import RlEngineConfig
from glmforge.config.schema import RunConfig
from glmforge.observe.alive import quiet
from glmforge.parallel.placement import local_chunk
from glmforge.parallel.world import World, join_world
from glmforge.rl.models import Models
from glmforge.rl.remote import Fleet, RemoteSampler
from glmforge.rl.rollout import Sampler
from glmforge.rl.samples import Answer
from helpers.models import tiny_config
from helpers.rollouts import VOCAB_SIZE, Prompts, config_of, settings_of

KEY = "secret"
COMMAND = [
    "env",
    f"GLMFORGE_API_KEYS={KEY}",
    sys.executable,
    "-m",
    "glmforge",
    "serve",
    "{weights}",
    "--port",
    "{port}",
    "--cache-gib",
    "0.02",
]
COMMAND += ["--allow-weight-updates"]
VLLM = "-m vllm.entrypoints.openai.api_server --model {weights} --host {host} --port {port} --enforce-eager"
VLLM += " --max-model-len 256 --max-num-seqs 32"
VLLM_SETTINGS = "VLLM_SERVER_DEV_MODE=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind HF_HUB_OFFLINE=1"
VLLM_SETTINGS += " VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
STOP_IDS = [476, 483, 485]
"""Of the tokenizer of `helpers.tiny_data`."""


def vllm_command(python: str, dtype: str, *options: str) -> list[str]:
    """Of vLLM's CPU build in an environment of its own."""
    return ["env", "-u", "PYTHONPATH", *VLLM_SETTINGS.split(), python, *VLLM.split(), "--dtype", dtype, *options]


class Policy:
    """A model on this rank with the samplers of a run."""

    def __init__(self, config: RunConfig, world: World, engine: dict[str, Any], **rollout: Any) -> None:
        self.config, self.world, self.backend = (
            config,
            world,
            NativeBackend.build(config, world, extend=adapters_of(config)),
        )
        settings = RlEngineConfig(**{"kind": "glmforge", "dtype": "fp32", "bucket_bytes": 100_000} | engine)
        self.fleet = Fleet(settings, config, self.backend.model, VOCAB_SIZE, KEY)
        rollouts = settings_of(rollout={"group_size": 4, "max_new_tokens": 10, **rollout}).rollout
        stops: dict[str, Any] = {"stop_ids": STOP_IDS, "vocab_size": VOCAB_SIZE, "seed": 7}
        self.remote = RemoteSampler(rollouts, self.fleet, **stops)
        self.native = Sampler(rollouts, self.backend.model, **stops)

    def answers(self, sampler: Sampler, version: int, number: int = 6) -> list[Answer]:
        """To the first prompts."""
        with self.backend.evaluating():
            return sampler.sample([Prompts()[one] for one in range(number)], version=version)

    def gaps(self, answers: list[Answer]) -> np.ndarray:
        """Of each token, the difference of the engine's log-probability from the trainer's now, in nats."""
        models = Models(self.config, settings_of(), self.backend)
        rows, batch = models.batch(answers)
        with self.backend.evaluating():
            own = models._logprobs(self.backend.model, batch, rows, quiet)
        return np.concatenate([np.abs(one.logprobs_N - own[one.key]) for one in answers])

    def peak_of_an_update(self) -> int:
        """Bytes of resident memory that this rank needs for it, above what it has before. Collective."""
        self.fleet.update(1)  # which writes files and starts servers
        dist.barrier()
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # or what the first update has freed would hide what this one takes
        before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        self.fleet.update(2)
        return _resident("VmHWM") - before

    def own_bytes(self) -> int:
        """Of this rank's parts of the weights."""
        parts = [local_chunk(one)[0] for one in self.backend.model.state_dict().values()]
        return sum(part.numel() * part.element_size() for part in parts)

    @torch.no_grad()
    def perturb(self, seed: int) -> None:
        """Add noise to what is trained, the same on every layout; adapters become noise."""
        for name, tensor in self.backend.model.state_dict().items():
            is_adapter = ".lora_" in name
            if is_adapter or self.config.lora is None:
                part, starts = local_chunk(tensor)
                index = tuple(slice(start, start + size) for start, size in zip(starts, part.shape, strict=True))
                part.copy_(noise(name, tensor.shape, seed)[index] + (0 if is_adapter else part))


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def noise(name: str, shape: Sequence[int], seed: int) -> torch.Tensor:
    return 0.05 * torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed + sum(name.encode())))


def run_config(directory: Path, tokenizer: Path, parallel: dict[str, Any], **sections: Any) -> RunConfig:
    data = {"tokenizer": str(tokenizer), "sources": [{"name": "text", "path": "text"}]}
    return config_of(parallel, optimizer="adamw", output_dir=str(directory), data=data, **sections)


@contextmanager
def one_policy(
    directory: Path, tokenizer: Path, engine: dict[str, Any], *, sections: dict[str, Any] | None = None, **rollout: Any
) -> Iterator[Policy]:
    config = run_config(directory, tokenizer, {}, **(sections or {}))
    policy = Policy(config, World(0, 1, torch.device("cpu"), resolve_layout(config, 1)), engine, **rollout)
    try:
        yield policy
    finally:
        policy.fleet.close()


def facts(answers: list[Answer]) -> list[tuple[Any, ...]]:
    """What an engine says of answers, in their order."""
    return [
        (*one.key, one.tokens_N.tolist(), one.finished, None if one.experts is None else one.experts.tolist())
        for one in sorted(answers, key=lambda one: one.key)
    ]


def on_ranks(directory: Path, tokenizer: Path, parallel: dict[str, Any], engine: dict[str, Any]) -> Any:
    """By a rank: answers of the servers after each of two updates, and what its share answers itself."""
    config = run_config(directory, tokenizer, parallel)
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        policy, found = Policy(config, world, engine), []
        try:
            for version in (3, 4):
                policy.perturb(version)
                found.append((facts(policy.answers(policy.remote, version)), facts(policy.answers(policy.native, 0))))
        finally:
            policy.fleet.close()
        return policy.remote.runner.is_first, found


def peak_on_rank(directory: Path, tokenizer: Path, engine: dict[str, Any]) -> tuple[int, int]:
    """Bytes of the rank's part of a model of some 200 MB, and what an update needs besides."""
    sizes = {"hidden_size": 768, "moe_intermediate_size": 512, "intermediate_size": 1024, "num_hidden_layers": 6}
    model = tiny_config(**sizes, num_nextn_predict_layers=0).model_dump()
    config = run_config(directory, tokenizer, {"dp_shard": dist.get_world_size()}, model=model)
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        policy = Policy(config, world, engine)
        try:
            return policy.own_bytes(), policy.peak_of_an_update()
        finally:
            policy.fleet.close()
