"""A training step of LoRA against transformers with peft, and against full fine-tuning, on this machine.

    python benchmarks/lora_step.py                              # every case and variant, about half an hour
    python benchmarks/lora_step.py --models narrow --dtypes bf16 --rounds 3

Needs peft. Two models: that of `train_step.py`, and a wider one in which adapters are a smaller part, as in a real
model. Both sides begin from the same weights and the same adapters of rank 16, in which neither factor is zero, and
train them on the same batches: forward, backward, gradient clipping, fused AdamW, with the same allocator setting.
Adapted are attention's four maps alone, or these and the packed routed experts, peft's `target_parameters`. glmforge
runs `Trainer.step`; transformers and peft run in the forms that can be fast: experts by grouped_mm or one by one,
plain or compiled, without a cache, frozen weights in the compute dtype. In bf16 peft's adapters are bf16 too, since its
own choice, fp32, casts what each adapter reads; glmforge keeps fp32 masters of its adapters. Full fine-tuning is
glmforge's, with AdamW for all parameters.

oneDNN compiles the bf16 products of each shape that it meets and keeps 1,024 of them. transformers' experts bring new
numbers of rows with every batch, so that this is too few; "large cache" is with ONEDNN_PRIMITIVE_CACHE_CAPACITY=8192,
which a user has to know of. glmforge rounds the numbers of rows and needs no more than there are.

Every variant lives in a process of its own and the processes take turns (`harness`). The losses of the first steps must
agree, to 1e-5 in fp32 and 1e-3 in bf16, or the run fails. On a machine that others use, too, `--threads 1 --clock
processor` counts the processor's seconds instead of those on the wall.

Memory: `peak_bytes` are the most bytes of tensors that live at once in a step, weights and optimizer state among them,
as torch's allocator counts them; `resident_bytes` is by how much the process has grown at most since its imports, with
what malloc keeps and what compiling takes.
"""

import argparse
import itertools
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from harness import Worker, arguments, paired_ratio, serve, step_figures, take_turns
from record import write_result
from safetensors.torch import save_file
from small_runs import run_of
from torch import Tensor, nn
from train_step import CONFIG, torch_dtype, transformers_model

from glmforge.adapt.lora import adapters_of
from glmforge.backend.native import NativeBackend
from glmforge.checkpoint.adapter.from_peft import read_peft
from glmforge.checkpoint.adapter.peft_config import peft_config
from glmforge.checkpoint.adapter.to_peft import peft_tensors
from glmforge.config.model import ModelConfig
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import IGNORED_LABEL, Batch
from glmforge.kernels.allocator import keep_large_blocks
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.observe.environment import process_rss_bytes
from glmforge.parallel.world import World
from glmforge.training.source import Phase, StepInput
from glmforge.training.trainer import Trainer

CODE = ("src/glmforge/model", "src/glmforge/kernels", "src/glmforge/adapt", "src/glmforge/training")
CODE += ("src/glmforge/backend", "src/glmforge/optim", "benchmarks/train_step.py", "benchmarks/harness.py")
SEQ_LEN, NUM_BATCHES = 256, 16
LR, WEIGHT_DECAY, GRAD_CLIP = 1e-4, 0.0, 1.0
FIRST_LOSSES = 4
TOLERANCES = {"fp32": 1e-5, "bf16": 1e-3}
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


class Model(NamedTuple):
    """A model and the rows of a batch."""

    config: ModelConfig
    batch_size: int


MODELS = {
    "narrow": Model(CONFIG, 8),
    "wide": Model(
        CONFIG.model_copy(
            update={
                "hidden_size": 1024,
                "num_hidden_layers": 4,
                "intermediate_size": 2688,
                "moe_intermediate_size": 352,
                "head_dim": 128,
                "n_routed_experts": 16,
            }
        ),
        4,
    ),
}
"""The wide one has the proportions of Air's widths, at a quarter of them."""
EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
TARGETS = {"attention": ["self_attn"], "attention and experts": ["self_attn", *(name[4:] for name in EXPERTS)]}


class Ours(NamedTuple):
    lora: bool
    compiled: bool


class Theirs(NamedTuple):
    experts: str
    compiled: bool
    large_cache: bool = False


VARIANTS: dict[str, Ours | Theirs] = {
    "glmforge": Ours(lora=True, compiled=False),
    "glmforge compiled": Ours(lora=True, compiled=True),
    "glmforge full": Ours(lora=False, compiled=False),
    "glmforge full compiled": Ours(lora=False, compiled=True),
    "peft eager": Theirs("eager", compiled=False),
    "peft grouped_mm": Theirs("grouped_mm", compiled=False),
    "peft grouped_mm compiled": Theirs("grouped_mm", compiled=True),
    "peft grouped_mm, large cache": Theirs("grouped_mm", compiled=False, large_cache=True),
    "peft grouped_mm compiled, large cache": Theirs("grouped_mm", compiled=True, large_cache=True),
}

Step = Callable[[], float]


class Case(NamedTuple):
    model: str
    dtype: str
    targets: str

    @property
    def batch_size(self) -> int:
        return MODELS[self.model].batch_size

    def run(self, *, lora: bool, compiled: bool = False) -> RunConfig:
        """glmforge's configuration, whose data need not exist."""
        phase = {"steps": 1000, "seq_len": SEQ_LEN, "batch_size": self.batch_size}
        adapted = {"lora": {"rank": 16, "targets": TARGETS[self.targets]}, "init_from": "base"} if lora else {}
        return run_of(
            MODELS[self.model].config.model_dump(mode="json"),
            phase | {"aux_loss_weight": 0.0, "router_bias_rate": 0.0},
            optim={"lr": LR, "weight_decay": WEIGHT_DECAY, "grad_clip": GRAD_CLIP, "matrix_optimizer": "adamw"},
            parallel={"compile": compiled},
            compute=self.dtype,
            **adapted,
        )


def main() -> None:
    args = parse_arguments()
    if args.worker:
        work(args.worker, Case(args.models[0], args.dtypes[0], args.targets[0]), args)
        return
    content: dict[str, Any] = {
        "threads": args.threads,
        "clock": args.clock,
        "rounds": args.rounds,
        "steps_per_turn": args.steps,
        "seq_len": SEQ_LEN,
        "models": {
            name: {"batch_size": MODELS[name].batch_size, "config": MODELS[name].config.model_dump(mode="json")}
            for name in args.models
        },
    }
    for case in itertools.starmap(Case, itertools.product(args.models, args.dtypes, args.targets)):
        found = compare(case, args)
        content.setdefault(case.model, {}).setdefault(case.dtype, {})[case.targets] = found
        print(*case, json.dumps(found, indent=1), flush=True)
        # After each case: the rest may be interrupted.
        write_result("lora_step", content, code=CODE, libraries=("transformers", "peft"), out=args.out)


def parse_arguments() -> argparse.Namespace:
    parser = arguments(__doc__, rounds=4, threads=True)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--dtypes", nargs="+", choices=TOLERANCES, default=[*TOLERANCES])
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=[*TARGETS])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=[*VARIANTS])
    parser.add_argument("--steps", type=int, default=2, help="steps in one turn")
    parser.add_argument("--warmup", type=int, default=4, help="untimed first steps; compilation falls into them")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def compare(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """All variants of a case, taking turns."""
    with tempfile.TemporaryDirectory() as folder:
        write_weights(case, Path(folder))
        given = [__file__, "--threads", str(args.threads), "--directory", folder, "--models", case.model]
        given += ["--dtypes", case.dtype, "--targets", case.targets, "--clock", args.clock, "--worker"]
        workers = {name: start(name, [*given, name], args.threads) for name in variants_of(case, args.variants)}
        for name, worker in workers.items():
            # With a large cache, until every shape has been met.
            worker.run(max(args.warmup, NUM_BATCHES) if has_large_cache(name) else args.warmup)
        take_turns(dict.fromkeys(workers.values(), args.steps), args.rounds)
        memory = {name: worker.ask({}) for name, worker in workers.items()}
        for worker in workers.values():
            worker.close()
    return summarize(case, workers, memory)


def variants_of(case: Case, names: list[str]) -> list[str]:
    """Those that differ in this dtype."""
    return [name for name in names if case.dtype == "bf16" or not has_large_cache(name)]


def has_large_cache(name: str) -> bool:
    variant = VARIANTS[name]
    return isinstance(variant, Theirs) and variant.large_cache


def start(name: str, arguments: list[str], threads: int) -> Worker:
    environment = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8192"} if has_large_cache(name) else {}
    return Worker(name, arguments, threads, **environment)


def write_weights(case: Case, folder: Path) -> None:
    """A base model's weights and a peft adapter."""
    torch.manual_seed(0)
    config = case.run(lora=True)
    torch.save(transformers_model(config.model, "fp32", "eager").state_dict(), folder / "base.pt")
    backend = NativeBackend.build(config, World.single("cpu"), extend=adapters_of(config))
    state = backend.model.state_dict()
    for name, tensor in state.items():
        if ".lora_" in name:
            nn.init.normal_(tensor, std=0.02)
    assert config.lora is not None
    tensors = {name: tensor.make() for name, tensor in peft_tensors(state, config.model, config.lora).items()}
    adapter = folder / "adapter"
    adapter.mkdir()
    save_file(tensors, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text(json.dumps(peft_config(config.model, config.lora, "base")))


def summarize(case: Case, workers: dict[str, Worker], memory: dict[str, Any]) -> dict[str, Any]:
    medians = {name: statistics.median(worker.seconds) for name, worker in workers.items()}
    summary: dict[str, Any] = {
        "variants": {
            name: step_figures(worker, case.batch_size * SEQ_LEN, FIRST_LOSSES) | memory[name]
            for name, worker in workers.items()
        }
    }
    lora, full = (
        fastest(medians, lambda variant, lora=lora: isinstance(variant, Ours) and variant.lora is lora)
        for lora in (True, False)
    )
    theirs = fastest(medians, lambda variant: isinstance(variant, Theirs))
    as_installed = fastest(medians, lambda variant: isinstance(variant, Theirs) and not variant.large_cache)
    others = {"against_peft": theirs, "against_peft_as_installed": as_installed, "against_full": full}
    for key, other in others.items():
        if lora and other:
            peaks = memory[other]["peak_bytes"] / memory[lora]["peak_bytes"]
            resident = memory[other]["resident_bytes"] / memory[lora]["resident_bytes"]
            summary[key] = paired_ratio(workers[other], workers[lora])
            summary[key] |= {"peak_bytes": round(peaks, 3), "resident_bytes": round(resident, 3)}
    if lora and theirs:
        pairs = zip(workers[lora].losses[:FIRST_LOSSES], workers[theirs].losses[:FIRST_LOSSES], strict=True)
        summary["loss_difference"] = difference = max(abs(a - b) / b for a, b in pairs)
        if difference > TOLERANCES[case.dtype]:
            raise RuntimeError(f"{case}: the first losses differ by {difference:.1e} of them: not the same mathematics")
    return summary


def fastest(medians: dict[str, float], is_meant: Callable[[Ours | Theirs], bool]) -> str | None:
    names = [name for name in medians if is_meant(VARIANTS[name])]
    return min(names, key=medians.__getitem__, default=None)


def work(name: str, case: Case, args: argparse.Namespace) -> None:
    """The process of one variant."""
    torch.set_num_threads(args.threads)
    keep_large_blocks()
    variant, folder = VARIANTS[name], args.directory
    if isinstance(variant, Theirs):
        import peft  # noqa: F401

        transformers_model(case.run(lora=True).model, "fp32", "eager")  # imports the rest
    before = process_rss_bytes()
    assert before is not None, "/proc tells what is resident"
    step, state = our_step(variant, case, folder) if isinstance(variant, Ours) else peft_step(variant, case, folder)

    def memory() -> dict[str, int]:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        return {"peak_bytes": peak_bytes(step, state()), "resident_bytes": most}

    serve(step, memory, CLOCKS[args.clock])


def peak_bytes(step: Step, state: Iterable[Tensor]) -> int:
    """The most bytes that live at once in a step: those of `state`, and what is asked for and freed on the way."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in state}
    return sum(storages.values()) + max(itertools.accumulate(changes))


def batches(case: Case) -> Iterable[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (NUM_BATCHES, case.batch_size, SEQ_LEN)
    return itertools.cycle(torch.randint(0, CONFIG.vocab_size, shape, generator=generator))


def our_step(variant: Ours, case: Case, folder: Path) -> tuple[Step, Callable[[], Iterable[Tensor]]]:
    """A step of the trainer, and the tensors that stay."""
    config = case.run(lora=variant.lora, compiled=variant.compiled)
    backend = NativeBackend.build(config, World.single("cpu"), extend=adapters_of(config))
    weights = torch.load(folder / "base.pt", mmap=True)
    if config.lora is not None:
        weights |= dict(read_peft(folder / "adapter", config.model, config.lora))
    with torch.no_grad():
        for name, tensor in backend.model.state_dict().items():
            tensor.copy_(weights[name])
    trainer = Trainer(config, backend)
    phase = Phase("main", NextTokenObjective(config.phases[0], num_mtp_layers=0))
    backend.model.train()
    given = iter(batches(case))

    def step() -> float:
        ids_BS = next(given)
        labels_BS = nn.functional.pad(ids_BS[:, 1:], (0, 1), value=IGNORED_LABEL)
        rows = len(ids_BS)
        batch = Batch(ids_BS, labels_BS, ((SEQ_LEN,),) * rows, tuple(range(rows)), (0,) * rows)
        return trainer.step(StepInput(batch, phase, lr=LR)).main_loss

    return step, lambda: backend.state_tensors().values()


def peft_step(variant: Theirs, case: Case, folder: Path) -> tuple[Step, Callable[[], Iterable[Tensor]]]:
    """A step of transformers and peft, and the tensors that stay."""
    from peft import PeftModel

    config = case.run(lora=True)
    base = transformers_model(config.model, "fp32", variant.experts)
    base.load_state_dict(torch.load(folder / "base.pt", mmap=True))
    for parameter in base.parameters():
        parameter.data = parameter.data.to(torch_dtype(case.dtype))
    model = PeftModel.from_pretrained(base, folder / "adapter", is_trainable=True, autocast_adapter_dtype=False)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert {parameter.dtype for parameter in trained} == {torch_dtype(case.dtype)}, "adapters compute as the model does"
    options = {"betas": config.optim.betas, "eps": config.optim.eps, "weight_decay": WEIGHT_DECAY}
    optimizer = torch.optim.AdamW(trained, lr=LR, fused=True, **options)
    forward = torch.compile(model) if variant.compiled else model
    given = iter(batches(case))

    def step() -> float:
        ids_BS = next(given)
        loss = forward(input_ids=ids_BS, labels=ids_BS, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(trained, GRAD_CLIP)
        optimizer.step()
        optimizer.zero_grad()
        found: float = loss.item()
        return found

    def state() -> list[Tensor]:
        moments = [t for of in optimizer.state.values() for t in of.values() if isinstance(t, Tensor)]
        return [*model.parameters(), *model.buffers(), *moments]

    return step, state


if __name__ == "__main__":
    main()
