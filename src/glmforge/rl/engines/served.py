"""`glmforge serve --allow-weight-updates`: its `/generate`, and weights in buckets (`deploy/serve/weights.py`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from glmforge.generate.params import SamplingParams
from glmforge.rl.engines.base import EngineError
from glmforge.rl.engines.http import HttpEngine, integer


class GlmforgeEngine(HttpEngine):
    """See above."""

    def request_of(self, prompt: Sequence[int], params: SamplingParams) -> tuple[str, dict[str, Any]]:
        return "/generate", {
            "prompt_token_ids": list(prompt),
            "max_tokens": params.max_new_tokens,
            "temperature": params.temperature,
            "seed": params.seed,
            "n": params.num_samples,
            "experts": params.experts,
            "stop_token_ids": list(params.stop_ids),
            "timeout": self.config.timeout_s,
        }

    def answers_of(self, reply: Mapping[str, Any]) -> list[Any]:
        return list(reply["choices"])

    def version(self) -> int | None:
        return integer(self.ask("GET", "/weights").get("version"))

    def pause(self) -> None:
        self.ask("POST", "/pause", {})

    def resume(self) -> None:
        self.ask("POST", "/resume", {})

    def begin_update(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        tensors = self.ask("POST", "/weights/begin", {}).get("tensors")
        try:
            return {str(name): (str(kind), tuple(map(int, shape))) for name, (kind, shape) in tensors.items()}  # type: ignore[union-attr]
        except (AttributeError, TypeError, ValueError):
            raise EngineError(f"{self.url}: invalid reply: expected the tensors of a model") from None

    def put(self, bucket: bytes) -> Mapping[str, int]:
        found = self.ask("POST", "/weights/bucket", bucket).get("checksums")
        if not isinstance(found, dict):
            raise EngineError(f"{self.url}: invalid reply: expected checksums")
        return found

    def commit(self, version: int) -> None:
        self.ask("POST", "/weights/commit", {"version": version})
