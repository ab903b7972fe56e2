"""What the server's metrics say, under vLLM's names."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from glmforge.deploy.serve.metrics import ServerMetrics
from glmforge.extras import MissingPackageError

ENGINE: Any = SimpleNamespace(
    scheduler=SimpleNamespace(running=[1, 2, 3], waiting=[4]),
    metrics=SimpleNamespace(num_steps=9, step_seconds=1.5, num_preempted=2, num_drafted=8, num_accepted=6),
    memory=SimpleNamespace(share_held=0.25),
)


def test_counts_queue_cache_and_times_of_a_model() -> None:
    metrics = ServerMetrics()
    metrics.num_prompt, metrics.num_cached, metrics.num_new = 100, 64, 7
    metrics.responses["/v1/completions", 200] += 2
    metrics.ended["stop"] += 1
    for seconds in (0.005, 0.3, 99.0):
        metrics.first.add(seconds)
    text, kind = metrics.text(ENGINE, 5, 'a "b"')
    assert kind.startswith("text/plain; version=")
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            model = sample.labels.pop("model_name", None)
            assert model == ('a "b"' if sample.name.startswith("vllm:") else model)
            found[sample.name, *sample.labels.values()] = sample.value
    expected = {
        ("vllm:num_requests_running",): 3,
        ("vllm:num_requests_waiting",): 1,
        ("vllm:kv_cache_usage_perc",): 0.25,
        ("vllm:prompt_tokens_total",): 100,
        ("vllm:prefix_cache_hits_total",): 64,
        ("vllm:generation_tokens_total",): 7,
        ("vllm:num_preemptions_total",): 2,
        ("vllm:time_to_first_token_seconds_bucket", "0.01"): 1,
        ("vllm:time_to_first_token_seconds_bucket", "0.5"): 2,
        ("vllm:time_to_first_token_seconds_bucket", "60.0"): 2,
        ("vllm:time_to_first_token_seconds_bucket", "+Inf"): 3,
        ("vllm:time_to_first_token_seconds_count",): 3,
        ("vllm:time_to_first_token_seconds_sum",): 99.305,
        ("vllm:inter_token_latency_seconds_count",): 0,
        ("vllm:e2e_request_latency_seconds_count",): 0,
        ("glmforge_requests_active",): 5,
        ("glmforge_responses_total", "/v1/completions", "200"): 2,
        ("glmforge_answers_total", "stop"): 1,
    }
    assert {key: found.get(key) for key in expected} == expected
    assert found["process_resident_memory_bytes",] > 1e6


def test_without_prometheus_client_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.exposition", None)
    with pytest.raises(MissingPackageError, match=r"^/metrics needs the package 'prometheus_client'"):
        ServerMetrics().text(ENGINE, 0, "m")
