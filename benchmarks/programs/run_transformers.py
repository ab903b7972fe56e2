"""transformers as a program under test: variant `eager` or `grouped_mm` is `generate` with those experts, and variant
`continuous` its continuous batching with the experts that it chooses.

All prompts of a request are of one length, so `generate` has no padding to compute.
"""

from types import SimpleNamespace

import torch
import transformers
from protocol import Answers, Prompts, read_settings, serve
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from transformers.generation.streamers import BaseStreamer

from glmforge.kernels.allocator import keep_large_blocks

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PAGE_SIZE = 32


class Stream(BaseStreamer):
    """Hears the tokens of all prompts after each step; the prompts themselves are what it hears first."""

    def __init__(self, answers: Answers) -> None:
        self.answers, self.began = answers, False

    def put(self, value: torch.Tensor) -> None:
        for number, token in enumerate(value.tolist() if self.began else ()):
            self.answers.add(number, token)
        self.began = True

    def end(self) -> None:
        pass


def main() -> None:
    settings = read_settings()
    torch.set_num_threads(settings.threads)
    keep_large_blocks()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=DTYPES[settings.dtype]).eval()
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    if settings.variant == "continuous":
        serve_continuously(model, settings)
        return
    model.set_experts_implementation(settings.variant)

    def generate(prompts: Prompts, new_tokens: int, answers: Answers) -> None:
        ids = torch.tensor(prompts)
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            streamer=Stream(answers),
        )

    serve(settings, generate, transformers.__version__)


def serve_continuously(model: transformers.PreTrainedModel, settings: SimpleNamespace) -> None:
    """One manager for all requests."""
    blocks = settings.num_sequences * (-(-settings.num_tokens // PAGE_SIZE) + 1)
    config = ContinuousBatchingConfig(
        page_size=PAGE_SIZE,
        num_blocks=blocks,
        max_batch_tokens=settings.step_tokens,
        max_requests_per_batch=settings.num_sequences,
        auto_switch_to_flash=False,
    )
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=settings.num_tokens)
    with model.continuous_batching_context_manager(
        generation_config=greedy, continuous_batching_config=config, warmup=False
    ) as manager:

        def generate(prompts: Prompts, new_tokens: int, answers: Answers) -> None:
            names = manager.add_requests(prompts, max_new_tokens=new_tokens, record_timestamps=True)
            numbers = {name: number for number, name in enumerate(names)}
            while numbers:
                result = manager.get_result(timeout=1)
                if result is None:
                    if not manager.is_running():
                        raise RuntimeError("the thread that generates has ended")
                elif result.is_finished():
                    number = numbers.pop(result.request_id)
                    for token, at in zip(result.generated_tokens, result.timestamps, strict=True):
                        answers.add(number, token, at)

        serve(settings, generate, transformers.__version__)


if __name__ == "__main__":
    main()
