"""SGLang's server, from its source alone: it needs a GPU, and this client has never spoken to one.

Seeds are heeded with `--enable-deterministic-inference` only. New weights are read from a directory.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glmforge.generate.params import SamplingParams
from glmforge.rl.engines.base import EngineError
from glmforge.rl.engines.http import HttpEngine


class SglangEngine(HttpEngine):
    """See above."""

    version_at = ("/model_info", "weight_version")

    def request_of(self, prompt: Sequence[int], params: SamplingParams) -> tuple[str, dict[str, Any]]:
        sampling = {
            "max_new_tokens": params.max_new_tokens,
            "temperature": params.temperature,
            "sampling_seed": (params.seed or 0) % 2**31,
            "n": params.num_samples,
            "stop_token_ids": list(params.stop_ids),
        }
        return "/generate", {"input_ids": list(prompt), "sampling_params": sampling, "return_logprob": True}

    def answers_of(self, reply: Mapping[str, Any]) -> list[Any]:
        return [
            {
                "tokens": one["output_ids"],
                "logprobs": [logprob for logprob, *_ in one["meta_info"]["output_token_logprobs"]],
                "finish_reason": one["meta_info"]["finish_reason"]["type"],
            }
            for one in reply.get("list", [reply])
        ]

    def load(self, directory: Path, version: int) -> None:
        body = {"model_path": str(directory), "weight_version": str(version)}
        if not (reply := self.ask("POST", "/update_weights_from_disk", body)).get("success"):
            raise EngineError(f"{self.url}: refuses {directory}: {str(reply.get('message'))[:200]}")
