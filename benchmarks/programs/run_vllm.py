"""vLLM on a CPU as a program under test: the engine in this process, stepped until all is done.

Variant `compiled` is its default, `eager` leaves torch.compile out. The libraries that vLLM's documentation recommends
to preload, Intel's OpenMP and tcmalloc, are preloaded where they are installed.
"""

import os
import sys
from pathlib import Path

from protocol import Answers, Prompts, read_settings, serve


def main() -> None:
    preloaded = preload()
    settings = read_settings()
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
    import vllm
    from vllm.sampling_params import RequestOutputKind

    llm = vllm.LLM(
        model=settings.model,
        dtype={"fp32": "float32", "bf16": "bfloat16"}[settings.dtype],
        max_model_len=settings.num_tokens,
        max_num_seqs=settings.num_sequences,
        max_num_batched_tokens=settings.step_tokens,
        enforce_eager=settings.variant == "eager",
        skip_tokenizer_init=True,
    )
    engine = llm.llm_engine
    num_asked = 0

    def generate(prompts: Prompts, new_tokens: int, answers: Answers) -> None:
        nonlocal num_asked
        params = vllm.SamplingParams(
            temperature=0.0,
            max_tokens=new_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        first, num_asked = num_asked, num_asked + len(prompts)
        for number, prompt in enumerate(prompts, first):
            engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                for token in output.outputs[0].token_ids:
                    answers.add(int(output.request_id) - first, token)

    serve(settings, generate, f"{vllm.__version__} with {preloaded}")


def preload() -> str:
    """Names of the preloaded libraries; starts this script anew with them if need be."""
    libraries = [*Path(sys.prefix, "lib").glob("libiomp5.so"), *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")]
    if libraries and "LD_PRELOAD" not in os.environ:
        os.environ["LD_PRELOAD"] = ":".join(map(str, libraries))
        os.execv(sys.executable, [sys.executable, *sys.argv])
    return " and ".join(library.name for library in libraries) or "nothing preloaded"


if __name__ == "__main__":
    main()
