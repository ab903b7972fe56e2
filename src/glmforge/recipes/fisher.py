"""Measure the Fisher information of a run's starting weights, for `regularization.ewc`, and write it to a directory.

The directory is a checkpoint without optimizer states: `fisher.<parameter>` in fp32 beside the weights that it belongs
to, `model.<parameter or buffer>`. Parts of tensors, `meta.json` and the manifest are those of every checkpoint, so any
layout reads it, `glmforge checkpoint verify` checks it, and what loads weights of a checkpoint loads these.
"""

from collections.abc import Callable
from pathlib import Path

from glmforge.checkpoint.format.meta import CheckpointMeta
from glmforge.checkpoint.initial_weights import check_initial_weights, load_initial_weights
from glmforge.checkpoint.save import save_tensors
from glmforge.checkpoint.values import check_values
from glmforge.config.schema import RunConfig
from glmforge.data.stream.evaluation import EvaluationBatches
from glmforge.data.tokens.model_ids import with_ids_of
from glmforge.data.tokens.shards import TokenShard
from glmforge.data.tokens.tokenizer import Tokenizer, token_byte_lengths
from glmforge.errors import ConfigError
from glmforge.optim.elastic import FISHER, START
from glmforge.parallel.build import build_model
from glmforge.parallel.world import default_device, join_world
from glmforge.recipes.fit import layout_at_hand
from glmforge.runtime.launch import LaunchEnvironment
from glmforge.training.fisher import diagonal_fisher


def write_fisher(
    config: RunConfig,
    shard: Path,
    out: Path,
    *,
    num_rows: int,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Measure on rows spread evenly over a token shard, of the first phase's `seq_len`; the number of tokens.

    The weights are those that the run starts from. Under torchrun all ranks call this together, laid out as
    `parallel` says; a pipeline runs one micro-batch at a time. Raises `GlmforgeError` for what the user can fix.
    """
    launch, tokenizer, tokens = LaunchEnvironment.read(), Tokenizer.load(config.data.tokenizer), TokenShard(shard)
    start = config.init_from
    if start is None:
        raise ConfigError("init_from: not set, so there are no weights to measure; set init_from=DIR")
    if out.exists():
        raise ConfigError(f"{out}: already exists; move it or choose another directory")
    tokens.check_tokenizer(tokenizer)
    check_initial_weights(start, config.model)
    config = config.model_copy(update={"model": with_ids_of(config.model, tokenizer)})
    single, seq_len = _for_single_rows(config, launch.world_size), config.phases[0].seq_len
    layout = layout_at_hand(single, launch, default_device())
    rows = EvaluationBatches(tokens, seq_len, num_rows * seq_len, token_byte_lengths(tokenizer))
    parallel = config.parallel
    with join_world(layout, parallel.process_group_timeout_s, wait_s=parallel.join_timeout_s) as world:
        model = build_model(single, world)
        load_initial_weights(
            start, model.state_dict(), model.config, tokenizer.fingerprint, cache_dir=config.init_cache_dir
        )
        batches = (rows[index].batch for index in range(len(rows)))
        fisher, num_tokens = diagonal_fisher(model, batches, lambda done: advance(done, len(rows)))
        fix = "nothing was written; use other text, or precision.compute=fp32"
        check_values(f"Fisher information of {start}", fisher, least=0, fix=fix)
        meta = CheckpointMeta(
            step=0,
            phase="fisher",
            tokens_consumed=0,
            samples_consumed={},
            config=config.model_dump(mode="json"),
            data_fingerprint={"fisher": {"path": str(shard), "rows": len(rows), "tokens": num_tokens}},
            tokenizer_fingerprint=tokenizer.fingerprint,
        )
        stored = {f"{FISHER}{name}": tensor for name, tensor in fisher.items()}
        save_tensors(out, stored | {f"{START}{name}": tensor for name, tensor in model.state_dict().items()}, meta)
    return num_tokens


def _for_single_rows(config: RunConfig, world_size: int) -> RunConfig:
    """The same model on the same ranks, for steps of one row: of the pipeline's schedules only gpipe takes one
    micro-batch, and there are no halves of it to overlap."""
    phase = config.phases[0].model_copy(update={"batch_size": world_size, "batch_ramp": None})
    parallel = config.parallel.model_copy(
        update={
            "pipeline_schedule": "gpipe",
            "pipeline_stages_per_rank": None,
            "pipeline_layers": None,
            "micro_batch_size": 1,
            "ep_overlap": False,
        }
    )
    return config.model_copy(update={"phases": [phase], "parallel": parallel, "lora": None})
