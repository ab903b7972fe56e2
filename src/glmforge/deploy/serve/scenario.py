"""What a scenario means for our own engine on this machine; see `plan.serving.scenario` for GPUs and other engines.

The four differ in how many sequences share a step, how much of a step prompts may take, how much memory is kept for
keys and values, and whether tokens are drafted. Which one wins what it is named for is measured by
`benchmarks/serving.py`.
"""

from dataclasses import dataclass

from glmforge.config.model import ModelConfig
from glmforge.generate.config import DrafterName
from glmforge.plan.counts.memory import kv_cache_bytes_per_token

_MIN_CACHE = 64 << 20


@dataclass(frozen=True)
class NativeSettings:
    """Of `EngineConfig`."""

    max_sequences: int
    max_step_tokens: int
    cache_bytes: int
    drafter: DrafterName | None = None


def native_settings(
    scenario: str, model: ModelConfig, free_bytes: float, *, can_draft_by_mtp: bool = True
) -> NativeSettings:
    """For a model that is loaded beside so many free bytes of memory."""
    drafter: DrafterName = "mtp" if model.num_nextn_predict_layers and can_draft_by_mtp else "ngram"

    def cache(num_sequences: int, share: float) -> int:
        """For sequences of the longest context, but at most this share of the free memory."""
        needed = num_sequences * model.max_position_embeddings * kv_cache_bytes_per_token(model)
        return max(_MIN_CACHE, int(min(needed, share * free_bytes)))

    return {
        "high-throughput": NativeSettings(256, 2048, cache(256, 0.4)),
        "balanced": NativeSettings(64, 512, cache(64, 0.2)),
        "low-latency": NativeSettings(8, 128, cache(8, 0.2), drafter),
        "memory-constrained": NativeSettings(8, 128, cache(1, 0.1), None),
    }[scenario]
