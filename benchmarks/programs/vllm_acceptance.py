"""The share of MTP's drafts that vLLM takes, on a CPU in fp32: MODEL as argument, then a line of JSON with prompts."""

import json
import os
import sys


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
    import vllm

    llm = vllm.LLM(
        model=sys.argv[1],
        dtype="float32",
        max_model_len=128,
        enforce_eager=True,
        skip_tokenizer_init=True,
        disable_log_stats=False,
        speculative_config={"method": "mtp", "num_speculative_tokens": 1},
    )
    for line in sys.stdin:
        asked = json.loads(line)
        params = vllm.SamplingParams(temperature=0.0, max_tokens=asked["new_tokens"], ignore_eos=True, detokenize=False)
        llm.generate([{"prompt_token_ids": prompt} for prompt in asked["prompts"]], params, use_tqdm=False)
        counts = {
            metric.name: metric.value
            for metric in llm.get_metrics()
            if "spec_decode_num" in metric.name and hasattr(metric, "value")
        }
        accepted = counts["vllm:spec_decode_num_accepted_tokens"]
        print(json.dumps({"acceptance": accepted / counts["vllm:spec_decode_num_draft_tokens"]}), file=out, flush=True)


if __name__ == "__main__":
    main()
