"""llama.cpp as a program under test, through the C interface that llama-cpp-python gives.

Its library computes batches of tokens of any sequences; what goes into a batch is chosen here as its server does:
sequences that decode first, one token each, and then pieces of prompts in the room that is left.
"""

import ctypes
import sys

import llama_cpp
from protocol import Answers, Prompts, read_settings, serve

GGML_TYPES = {"fp32": 0, "bf16": 30}
GGML_LOG_LEVEL_ERROR = 4


class Llama:
    """A model with room for `num_sequences` sequences of `num_tokens` tokens."""

    def __init__(self, path: str, num_sequences: int, num_tokens: int, step_tokens: int, threads: int, dtype: str):
        llama_cpp.llama_backend_init()
        llama_cpp.llama_log_set(ERRORS_ONLY, None)
        model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not model:
            raise RuntimeError(f"{path}: llama.cpp cannot load it")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = num_sequences * -(-num_tokens // 256) * 256
        params.n_seq_max = num_sequences
        params.n_batch = params.n_ubatch = step_tokens
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = GGML_TYPES[dtype]
        self.context = llama_cpp.llama_init_from_model(model, params)
        if not self.context:
            raise RuntimeError(f"{path}: llama.cpp cannot run it with these settings")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.greedy = llama_cpp.llama_sampler_init_greedy()
        self.batch = llama_cpp.llama_batch_init(step_tokens, 0, 1)
        self.step_tokens = step_tokens

    def generate(self, prompts: Prompts, new_tokens: int, answers: Answers) -> None:
        llama_cpp.llama_memory_clear(self.memory, False)
        pending = {number: list(prompt) for number, prompt in enumerate(prompts)}
        lengths = [0] * len(prompts)
        while pending:
            for number, token in self._step(pending, lengths):
                answers.add(number, token)
                if len(answers.tokens[number]) == new_tokens:
                    del pending[number]
                else:
                    pending[number] = [token]

    def _step(self, pending: dict[int, list[int]], lengths: list[int]) -> list[tuple[int, int]]:
        """Compute a batch; the next token of each sequence that has nothing pending then."""
        batch, size = self.batch, 0
        complete = []
        for number in sorted(pending, key=lambda one: len(pending[one]) > 1):
            piece = pending[number][: self.step_tokens - size]
            if not piece:
                break
            for token in piece:
                batch.token[size], batch.pos[size] = token, lengths[number]
                batch.n_seq_id[size], batch.seq_id[size][0], batch.logits[size] = 1, number, 0
                lengths[number] += 1
                size += 1
            pending[number] = pending[number][len(piece) :]
            if not pending[number]:
                batch.logits[size - 1] = 1
                complete.append((number, size - 1))
        batch.n_tokens = size
        if status := llama_cpp.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode: status {status}")
        return [
            (number, llama_cpp.llama_sampler_sample(self.greedy, self.context, place)) for number, place in complete
        ]


@llama_cpp.llama_log_callback
def ERRORS_ONLY(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Otherwise the library tells of every tensor."""
    if level == GGML_LOG_LEVEL_ERROR:
        sys.stderr.write(text.decode())


def main() -> None:
    settings = read_settings()
    llama = Llama(
        settings.model,
        settings.num_sequences,
        settings.num_tokens,
        settings.step_tokens,
        settings.threads,
        settings.dtype,
    )
    serve(settings, llama.generate, f"llama-cpp-python {llama_cpp.__version__}")


if __name__ == "__main__":
    main()
