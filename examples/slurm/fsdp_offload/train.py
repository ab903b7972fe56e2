"""A small language model of bytes, trained by FSDP2 with parameters and optimizer in the CPU's memory.

    torchrun --nproc-per-node 2 examples/slurm/fsdp_offload/train.py --steps 100 --save runs/fsdp

Like the example `ddp`, but no rank holds the whole model: every rank saves its own part (torch.distributed.checkpoint),
into a directory per step, and the last one that is complete is named by a small file. It can be resumed on another
number of ranks.
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.nn import functional as F

PREEMPTED = 75
RANK, LOCAL_RANK = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])


class ByteModel(nn.Module):
    """Logits of the next byte, from the bytes before it."""

    def __init__(self, width: int = 64, context: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        length = text.shape[1]  # of each row; the answer is one list of all positions
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=text.device)
        hidden = self.embedding(text) + self.position(torch.arange(length, device=text.device))
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden.flatten(0, 1))


def sharded(device: torch.device) -> nn.Module:
    """Each block is gathered when its turn comes; what is not needed lies in the CPU's memory."""
    torch.manual_seed(0)
    model = ByteModel()
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    offload = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    for block in model.blocks:
        fully_shard(block, mesh=mesh, offload_policy=offload)
    fully_shard(model, mesh=mesh, offload_policy=offload)  # in place
    return model


def batch_of(text: Tensor, step: int, rows: int, length: int) -> Tensor:
    """Rows of this rank in this step, independent of what happened before."""
    random = torch.Generator().manual_seed(1_000_003 * step + RANK)
    starts = torch.randint(len(text) - length - 1, (rows,), generator=random)
    return torch.stack([text[start : start + length + 1] for start in starts.tolist()]).long()


def save(root: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """All ranks together; `latest` is renamed into place once every part is written."""
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=root / f"step-{step}")
    if RANK == 0:
        (root / "latest.new").write_text(str(step))
        (root / "latest.new").replace(root / "latest")
    dist.barrier()


def load(root: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The number of steps that are done."""
    if not (root / "latest").exists():
        return 0
    step = int((root / "latest").read_text())
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=root / f"step-{step}")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return step


def leave(status: int) -> NoReturn:
    """Leave the group and end the process, without freeing anything.

    Gloo's threads may live on, and one that has yet to free a tensor hangs, or aborts, an interpreter that ends.
    """
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(status)


def main() -> NoReturn:
    options = argparse.ArgumentParser()
    options.add_argument("--text", type=Path, default=Path(__file__), help="any file; by default this script")
    options.add_argument("--save", type=Path, default=Path("runs/fsdp"), help="directory that all nodes see")
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--save-every", type=int, default=50)
    given = options.parse_args()

    warned = [False]  # a handler may do next to nothing: the loop looks at it
    signal.signal(signal.SIGUSR1, lambda *_: warned.__setitem__(0, True))

    device = torch.device("cuda", LOCAL_RANK) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Gradients that lie in the CPU's memory are reduced there, so both need a backend.
    dist.init_process_group("cuda:nccl,cpu:gloo" if device.type == "cuda" else "gloo")
    given.save.mkdir(parents=True, exist_ok=True)
    model = sharded(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = torch.frombuffer(bytearray(given.text.read_bytes()), dtype=torch.uint8)

    for step in range(load(given.save, model, optimizer), given.steps):
        rows = batch_of(text, step, rows=8, length=64).to(device)
        loss = F.cross_entropy(model(rows[:, :-1]), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        # One number for all: the mean loss, and whether anybody was warned. All ranks then do the same.
        told = torch.tensor([loss.item(), float(warned[0])], dtype=torch.float64, device=device)
        dist.all_reduce(told)
        mean, any_warned = told[0].item() / dist.get_world_size(), told[1].item() > 0
        if RANK == 0:
            print(f"step {step + 1} loss {mean:.9f}", flush=True)
        if file := os.environ.get("GLMFORGE_STEP_FILE"):  # of `glmforge launch`: for its logs
            Path(file).write_text(str(step + 1))
        if any_warned or (step + 1) % given.save_every == 0 or step + 1 == given.steps:
            save(given.save, model, optimizer, step + 1)
        if any_warned and step + 1 < given.steps:
            if RANK == 0:
                print("warned: saved, and gives way", flush=True)
                (given.save / "preempted").touch()
            leave(PREEMPTED)
    if RANK == 0:
        (given.save / "preempted").unlink(missing_ok=True)
    leave(0)


if __name__ == "__main__":
    main()
