"""vLLM's OpenAI server in development mode (VLLM_SERVER_DEV_MODE=1), which reads new weights from a directory.

Works with 0.32. With another temperature than 1 the server needs `--logprobs-mode processed_logprobs`: what it reports
by default is not what it sampled from. It neither reports experts as the trainer numbers them nor takes tensors over
HTTP. Its build for processors computes something else after `reload_weights` (`restart: true` starts it anew instead).
An adapter (`lora`) needs `--enable-lora`, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glmforge.checkpoint.format.sharded_adapter import CONFIG_FILE
from glmforge.generate.params import SamplingParams
from glmforge.rl.engines.http import HttpEngine

ADAPTER = "policy"
"""What requests call the adapter."""


class VllmEngine(HttpEngine):
    """See above."""

    version_at = ("/weight_info", "weight_version")
    _model: str | None = None

    def request_of(self, prompt: Sequence[int], params: SamplingParams) -> tuple[str, dict[str, Any]]:
        return "/v1/completions", {
            "prompt": list(prompt),
            "max_tokens": params.max_new_tokens,
            "temperature": params.temperature,
            "seed": params.seed,
            "n": params.num_samples,
            "stop_token_ids": list(params.stop_ids),
            "logprobs": 0,
            "return_token_ids": True,
            **({} if self._model is None else {"model": self._model}),
        }

    def answers_of(self, reply: Mapping[str, Any]) -> list[Any]:
        choices = sorted(reply["choices"], key=lambda one: one["index"])
        return [one | {"tokens": one["token_ids"], "logprobs": one["logprobs"]["token_logprobs"]} for one in choices]

    def load(self, directory: Path, version: int) -> None:
        if (directory / CONFIG_FILE).exists():
            adapter = {"lora_name": ADAPTER, "lora_path": str(directory), "load_inplace": True}
            self.tell("/v1/load_lora_adapter", adapter)
            self._model = ADAPTER
        else:
            call = {"method": "reload_weights", "kwargs": {"weights_path": str(directory)}}
            self.tell("/collective_rpc", call)
        self.tell("/reset_prefix_cache", {})
        self.number(version)

    def number(self, version: int) -> None:
        self.tell("/update_weight_version", {"new_version": str(version)})
