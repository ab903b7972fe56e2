"""A small language model of bytes, trained by plain DistributedDataParallel: what a script of your own needs to have.

    torchrun --nproc-per-node 2 examples/slurm/ddp/train.py --steps 100 --save runs/ddp

What matters is around the model: rank numbers come from the environment, for any launcher; each step's data
is a function of seed, step and rank, so a resumed run goes on as if it had never stopped; SIGUSR1 saves and ends with
status 75, which says "start me again"; a checkpoint is there as a whole or not at all.
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

PREEMPTED = 75
RANK, LOCAL_RANK = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])


class ByteModel(nn.Module):
    """Logits of the next byte, from the bytes before it."""

    def __init__(self, width: int = 64, context: int = 64) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(256, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=text.device)
        hidden = self.embedding(text) + self.position(torch.arange(length, device=text.device))
        return self.head(self.blocks(hidden, mask=mask, is_causal=True))


def batch_of(text: Tensor, step: int, rows: int, length: int) -> Tensor:
    """Rows of this rank in this step, independent of what happened before."""
    random = torch.Generator().manual_seed(1_000_003 * step + RANK)
    starts = torch.randint(len(text) - length - 1, (rows,), generator=random)
    return torch.stack([text[start : start + length + 1] for start in starts.tolist()]).long()


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Rank 0 writes beside, and renames: who reads finds the old one or the new one."""
    if RANK == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"{path}.new")
        Path(f"{path}.new").replace(path)
    dist.barrier()


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
    options.add_argument("--save", type=Path, default=Path("runs/ddp"), help="directory that all nodes see")
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--save-every", type=int, default=50)
    given = options.parse_args()

    warned = [False]  # a handler may do next to nothing: the loop looks at it
    signal.signal(signal.SIGUSR1, lambda *_: warned.__setitem__(0, True))

    device = torch.device("cuda", LOCAL_RANK) if torch.cuda.is_available() else torch.device("cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(ByteModel().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = torch.frombuffer(bytearray(given.text.read_bytes()), dtype=torch.uint8)

    checkpoint, first = given.save / "checkpoint.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    for step in range(first, given.steps):
        rows = batch_of(text, step, rows=8, length=64).to(device)
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
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
            save(checkpoint, model, optimizer, step + 1)
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
