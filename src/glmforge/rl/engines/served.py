"""`glmforge serve --allow-weight-updates`: its `/generate`, and weights in buckets (`deploy/serve/weights.py`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from glmforge.generate.params import SamplingParams
from glmforge.rl.engines.base import EngineError, EngineLostError
from glmforge.rl.engines.http import HttpEngine

Held = dict[str, tuple[str, tuple[int, ...]]]
"""Published name -> type, as safetensors call it, and shape."""


class GlmforgeEngine(HttpEngine):
    """See above."""

    version_at = ("/weights", "version")

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
        choices = list(reply["choices"])
        if choices and all("tokens" in one and "versions" not in one for one in choices):
            raise EngineLostError(f"{self.url}: was started again and has not been sent weights")
        return choices

    def begin_update(self) -> Held:
        """Pause, and say what the server holds, all of which `put` must bring before `commit`."""
        self.tell("/pause", {})
        tensors = self.ask("POST", "/weights/begin", {}).get("tensors")
        try:
            return {str(name): (str(kind), tuple(map(int, shape))) for name, (kind, shape) in dict(tensors).items()}  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise EngineError(f"{self.url}/weights/begin: invalid reply: expected the tensors of a model") from None

    def put(self, bucket: bytes) -> Mapping[str, Any]:
        """Send tensors, a safetensors file; the checksum of each as the server holds it then."""
        found = self.ask("POST", "/weights/bucket", bucket).get("checksums")
        return found if isinstance(found, dict) else {}

    def commit(self, version: int) -> None:
        self.tell("/weights/commit", {"version": version})
        self.tell("/resume", {})
