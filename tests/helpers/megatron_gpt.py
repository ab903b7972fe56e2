"""Real megatron-core models on the CPU: built in any layout, loaded, saved and run, for tests of checkpoints.

megatron-core 0.16.1 expects a CUDA device in a few places only; `_on_cpu` replaces those calls, and nothing else. Names
of Megatron are imported inside the functions, which run on ranks of their own (`helpers.distributed.run_ranks`).
"""

import argparse
import contextlib
import queue
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glmforge.checkpoint.convert.megatron_arguments import arguments_of
from glmforge.config.model import ModelConfig

ITERATION = 7


class Layout(NamedTuple):
    """Sizes of the axes; `grouped`: the experts of a rank are one matrix (GroupedMLP), else a list of MLPs."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    grouped: bool = False

    @property
    def world_size(self) -> int:
        return max(self.tp, self.ep) * self.pp


def _on_cpu() -> None:
    import megatron.core.tensor_parallel.random as rng
    import megatron.core.transformer.moe.grouped_gemm_util as grouped_gemm
    import megatron.core.transformer.moe.moe_utils as moe_utils
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *args: None
    torch.cuda.Stream = lambda *args: None
    Tensor.cuda = lambda self, *args: self
    rng.CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()
    moe_utils.te_general_gemm = None  # 0.16.1 names it without Transformer Engine, too
    grouped_gemm.assert_grouped_gemm_is_available = lambda: None  # the weights do not need its kernels
    filesystem_async._results_queue = queue.Queue()  # its own starts a process, which imports everything once more


def _build(config: ModelConfig, layout: Layout, dtype: torch.dtype, padded_vocab: int) -> Any:
    """This rank's part of the model, with random weights."""
    import megatron.core.parallel_state as parallel_state
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    _on_cpu()
    parallel_state.initialize_model_parallel(
        layout.tp, layout.pp, expert_model_parallel_size=layout.ep, expert_tensor_parallel_size=1
    )
    given = arguments_of(config, padded_vocab)
    named = {**given, "layernorm_epsilon": given["norm_epsilon"], "num_moe_experts": given.get("num_experts")}
    fields = {name: value for name, value in named.items() if name in TransformerConfig.__dataclass_fields__}
    is_moe = config.num_moe_layers > 0
    if config.n_group == 1:
        fields |= {"moe_router_num_groups": None, "moe_router_group_topk": None}
    if is_moe:
        fields |= {"moe_token_dispatcher_type": "allgather", "moe_router_load_balancing_type": "none"}
        fields |= {"moe_router_dtype": "fp32", "moe_aux_loss_coeff": 0.0, "moe_grouped_gemm": layout.grouped}
    transformer = TransformerConfig(
        **fields,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=1,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        use_cpu_initialization=True,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        apply_rope_fusion=False,
    )
    if is_moe:
        layers = specs.get_gpt_decoder_block_spec(transformer, use_transformer_engine=False, normalization="RMSNorm")
        mtp = specs.get_gpt_mtp_block_spec(transformer, layers, use_transformer_engine=False)
    else:
        layers, mtp = specs.get_gpt_layer_local_spec(normalization="RMSNorm"), None
    model = GPTModel(
        transformer,
        layers,
        vocab_size=padded_vocab,
        max_sequence_length=config.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="rope",
        rotary_percent=config.partial_rotary_factor,
        rotary_base=config.rope_theta,
        share_embeddings_and_output_weights=config.tie_word_embeddings,
        mtp_block_spec=mtp,
    )
    for tensor in model.state_dict().values():  # biases and norms are 0 and 1, which hide their places
        if isinstance(tensor, Tensor) and tensor.dim() == 1:
            tensor.add_(torch.randn(tensor.shape) * 0.1)
    for parameter in model.parameters():  # as its Float16Module does: norms too, but not the biases of routers
        parameter.data = parameter.data.to(dtype)
    return model


def _save(model: Any, config: ModelConfig, directory: Path, padded_vocab: int, metadata: dict[str, Any]) -> None:
    """As Megatron-LM's `save_checkpoint` does, with an optimizer's and a random state beside the weights."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor

    rank = torch.distributed.get_rank()
    moment = ShardedTensor.from_rank_offsets("optimizer.state.exp_avg.x", torch.ones(4), replica_id=rank)
    random = ShardedObject("rng_state", [{"cpu": torch.get_rng_state()}], (1,), (0,), replica_id=rank)
    arguments = argparse.Namespace(**arguments_of(config, padded_vocab), lr=1e-4, params_dtype=torch.bfloat16)
    arguments.attention_backend, arguments.flops = argparse.Namespace(name="auto"), 10**24
    state = {"model": model.sharded_state_dict(metadata=metadata), "optimizer": moment, "rng_state": random}
    if rank == 0:
        directory.mkdir(parents=True)
    torch.distributed.barrier()
    common = {"args": arguments, "iteration": ITERATION, "checkpoint_version": 3.0}
    dist_checkpointing.save({**state, **common}, str(directory), content_metadata=metadata)


def save(config: ModelConfig, layout: Layout, root: Path, dtype: torch.dtype, padded_vocab: int) -> None:
    """Save random weights in this layout below `root`, with its tracker, layers stacked where Megatron stacks them."""
    torch.manual_seed(torch.distributed.get_rank())
    model = _build(config, layout, dtype, padded_vocab)
    _save(model, config, root / f"iter_{ITERATION:07d}", padded_vocab, {})
    (root / "latest_checkpointed_iteration.txt").write_text(str(ITERATION))


def load_and_save(
    source: Path, config: ModelConfig, layout: Layout, out: Path, dtype: torch.dtype, padded_vocab: int
) -> None:
    """Load `source` as Megatron-LM does with --dist-ckpt-strictness log_unexpected, and save it as `out`."""
    from megatron.core import dist_checkpointing

    model = _build(config, layout, dtype, padded_vocab)
    common = dist_checkpointing.load_common_state_dict(str(source))
    metadata = dist_checkpointing.load_content_metadata(preloaded_state_dict=common)
    assert vars(common["args"])["num_layers"] == config.num_hidden_layers
    state = {"model": model.sharded_state_dict(metadata=metadata)}
    loaded = dist_checkpointing.load(state, str(source), strict="log_unexpected")["model"]
    missing = {name for name in model.state_dict() if not name.endswith("_extra_state")} - loaded.keys()
    assert not missing, missing
    model.load_state_dict(loaded, strict=False)
    _save(model, config, out, padded_vocab, {})


def logits(config: ModelConfig, source: Path, ids_BS: Tensor, padded_vocab: int) -> Tensor:
    """What Megatron's own model answers in fp32, `[B, S, padded_vocab]`."""
    from megatron.core import dist_checkpointing

    model = _build(config, Layout(), torch.float32, padded_vocab)
    state = {"model": model.sharded_state_dict()}
    model.load_state_dict(dist_checkpointing.load(state, str(source), strict="log_unexpected")["model"], strict=False)
    model.eval().mtp_process, model.config.mtp_num_layers = False, None  # its losses need labels
    length = ids_BS.shape[1]
    with torch.no_grad():
        mask = torch.ones(1, 1, length, length).tril().logical_not()
        return model(ids_BS, torch.arange(length).expand_as(ids_BS), mask)
