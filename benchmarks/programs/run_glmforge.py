"""glmforge's engine as a program under test."""

import torch
from protocol import Answers, Prompts, read_settings, serve

import glmforge
from glmforge.checkpoint.pretrained import load_pretrained
from glmforge.generate.config import EngineConfig
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.runner import WholeModel
from glmforge.kernels.allocator import keep_large_blocks

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main() -> None:
    settings = read_settings()
    torch.set_num_threads(settings.threads)
    keep_large_blocks()
    runner = WholeModel(load_pretrained(settings.model, dtype=DTYPES[settings.dtype]))
    page_size = EngineConfig.page_size
    num_pages = settings.num_sequences * -(-settings.num_tokens // page_size)
    config = EngineConfig(
        cache_bytes=num_pages * runner.page_bytes(page_size),
        max_sequences=settings.num_sequences,
        max_step_tokens=settings.step_tokens,
    )
    engine = Engine(runner, config)

    def generate(prompts: Prompts, new_tokens: int, answers: Answers) -> None:
        params = SamplingParams(max_new_tokens=new_tokens)
        numbers = {engine.add(prompt, params): number for number, prompt in enumerate(prompts)}
        while not engine.is_idle:
            for update in engine.step():
                if update.token is not None:
                    answers.add(numbers[update.request], update.token)

    serve(settings, generate, glmforge.__version__)


if __name__ == "__main__":
    main()
