"""Pairs of answers made up for tests, and what NumPy makes of them."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from glmforge.config.model import ModelConfig
from glmforge.config.parallel import ParallelConfig
from glmforge.config.schema import RunConfig
from glmforge.data.preferences.encode import EncodedAnswer, EncodedPair
from glmforge.data.preferences.pairs import PairArrays, pair_arrays
from glmforge.data.preferences.stream import PairStream
from glmforge.data.stream.batch import Batch
from glmforge.model.transformer import ForwardOutput, RouterStats
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.world import World
from helpers.models import run_config, tiny_config

SCORE_ONLY = {"heads": {"score": 1}, "lm_head": False, "num_nextn_predict_layers": 0}


def random_pairs(num_pairs: int, *, longest: int = 20, vocab_size: int = 512, seed: int = 0) -> PairArrays:
    """Pairs with a prompt in common, answers of uneven length, and margins."""
    rng = np.random.default_rng(seed)

    def answer(prompt: NDArray[np.int32]) -> EncodedAnswer:
        ids = rng.integers(0, vocab_size, rng.integers(1, longest - len(prompt))).astype(np.int32)
        return EncodedAnswer(np.concatenate([prompt, ids]), np.arange(len(prompt) + len(ids)) >= len(prompt))

    pairs = []
    for number in range(num_pairs):
        prompt = rng.integers(0, vocab_size, rng.integers(1, longest // 2)).astype(np.int32)
        margin, category = float(rng.random()), "ab"[number % 2]
        pairs.append(EncodedPair(answer(prompt), answer(prompt), len(prompt), margin, category))
    return pair_arrays(pairs)


def random_stream(seq_len: int = 32, *, with_reference: bool = False, sizes: Sequence[int] = (9, 5)) -> PairStream:
    """Two sources; reference log-probabilities near those of an untrained model."""
    stream = PairStream([random_pairs(size, seed=k) for k, size in enumerate(sizes)], seq_len, seed=3)
    if with_reference:
        rng = np.random.default_rng(7)
        stream.reference_P2 = (-50 + 5 * rng.standard_normal((stream.num_pairs, 2))).astype(np.float32)
    return stream


def one_device_share(batch: Batch) -> TokenShare:
    return TokenShare(*batch.ids_BS.shape, World.single("cpu"), ParallelConfig())


def output_of(main: torch.Tensor, aux_loss: float = 0.0) -> ForwardOutput[torch.Tensor]:
    """What a model without MTP layers and routers would give."""
    counts = torch.zeros(0, 1, dtype=torch.int64)
    return ForwardOutput(main, (), RouterStats(counts, counts, torch.tensor(aux_loss)))


def documents_of(batch: Batch) -> list[tuple[int, int, int]]:
    """Row, first and last token of the documents that are answers, row after row."""
    found = []
    for row, lengths in enumerate(batch.document_lengths):
        ends = np.cumsum(lengths)
        found += [(row, int(end - length), int(end) - 1) for end, length in zip(ends[:-1], lengths[:-1], strict=True)]
    return found


def preference_config(stage: str, *, parallel: dict[str, object] | None = None, **phase: object) -> RunConfig:
    """A run of the tiny model, whose weights are large enough that all of it matters."""
    model = tiny_config(initializer_range=0.15, **(SCORE_ONLY if stage == "reward" else {})).model_dump()
    return run_config(
        stage=stage,
        init_from="weights",
        model=ModelConfig(**model),
        data={"tokenizer": "t", "sources": [{"name": n, "path": f"{n}.jsonl"} for n in ("first", "second")]},
        phases=[{"name": "main", "steps": 4, "seq_len": 32, "batch_size": 8, **phase}],
        parallel=parallel or {},
    )


def write_preferences(path: Path, num_pairs: int, *, first: int = 0) -> Path:
    """Records of which a small model can learn: the chosen answer is polite."""
    records = [
        {
            "prompt": f"How is number {n}?",
            "chosen": f"Good, thank you for asking about {n}.",
            "rejected": f"Bad {n}.",
            "category": "even" if n % 2 == 0 else "odd",
        }
        for n in range(first, first + num_pairs)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
