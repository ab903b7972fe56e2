"""A policy, and servers that sample its answers, on any layout."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from glmforge.backend.native import NativeBackend
from glmforge.config.layout import resolve_layout
from glmforge.config.optimizers import OPTIMIZERS
from glmforge.config.rl_engine import RlEngineConfig
from glmforge.config.schema import RunConfig
from glmforge.parallel.placement import local_chunk
from glmforge.parallel.world import World, join_world
from glmforge.rl.remote import Fleet, RemoteSampler
from glmforge.rl.rollout import Sampler
from glmforge.rl.samples import Answer
from helpers.rollouts import VOCAB_SIZE, Prompts, config_of, settings_of
from helpers.sgd import SGD

KEY = "secret"
COMMAND = [sys.executable, "-m", "glmforge", "serve", "{weights}", "--port", "{port}", "--cache-gib", "0.02"]
COMMAND += ["--allow-weight-updates"]
STOP_IDS = [476, 483, 485]
"""Of the tokenizer of `helpers.tiny_data`."""


class Policy:
    """A model on this rank with the samplers of a run."""

    def __init__(self, config: RunConfig, world: World, engine: dict[str, Any], **rollout: Any) -> None:
        self.config, self.world, self.backend = config, world, NativeBackend.build(config, world)
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

    @torch.no_grad()
    def perturb(self, seed: int) -> None:
        """The same on every layout: noise of a tensor's name and seed, cut as the tensor is."""
        for name, tensor in self.backend.model.state_dict().items():
            generator = torch.Generator().manual_seed(seed + sum(name.encode()))
            noise = 0.05 * torch.randn(tensor.shape, generator=generator)
            part, starts = local_chunk(tensor)
            part += noise[tuple(slice(start, start + size) for start, size in zip(starts, part.shape, strict=True))]


def run_config(directory: Path, tokenizer: Path, parallel: dict[str, Any], **sections: Any) -> RunConfig:
    data = {"tokenizer": str(tokenizer), "sources": [{"name": "text", "path": "text"}]}
    return config_of(parallel, output_dir=str(directory), data=data, **sections)


@contextmanager
def one_policy(
    directory: Path, tokenizer: Path, engine: dict[str, Any], *, sections: dict[str, Any] | None = None, **rollout: Any
) -> Iterator[Policy]:
    OPTIMIZERS["sgd"] = SGD
    os.environ["GLMFORGE_API_KEYS"] = KEY
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
    OPTIMIZERS["sgd"] = SGD
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
