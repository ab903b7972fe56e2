"""A small language model of bytes, trained by DeepSpeed's ZeRO-3 with offload: see `ddp/train.py` for what matters.

Runs without a GPU as well. DeepSpeed itself writes its checkpoints and names the last one in `latest`.
"""

import argparse
import json
import os
import signal
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

PREEMPTED = 75
RANK, LOCAL_RANK = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])


class ByteModel(nn.Module):
    """Logits of the next byte, from the bytes before it."""

    def __init__(self, width: int = 256, context: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        length = text.shape[1]
        hidden = self.embedding(text) + self.position(torch.arange(length, device=text.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=text.device, dtype=hidden.dtype)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden)


def batch_of(text: Tensor, step: int, rows: int, length: int) -> Tensor:
    """Rows of this rank in this step, independent of what happened before."""
    random = torch.Generator().manual_seed(1_000_003 * step + RANK)
    starts = torch.randint(len(text) - length - 1, (rows,), generator=random)
    return torch.stack([text[start : start + length + 1] for start in starts.tolist()]).long()


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--deepspeed_config", type=Path, required=True)
    options.add_argument("--local_rank", type=int, default=LOCAL_RANK, help="which the deepspeed launcher adds")
    options.add_argument("--text", type=Path, default=Path(__file__), help="any file; by default this script")
    options.add_argument("--save", type=Path, default=Path("runs/deepspeed"), help="directory that all nodes see")
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--save-every", type=int, default=50)
    given = options.parse_args()

    warned = [False]  # a handler may do next to nothing: the loop looks at it
    signal.signal(signal.SIGUSR1, lambda *_: warned.__setitem__(0, True))

    deepspeed.init_distributed(auto_mpi_discovery=False)  # the environment says all
    torch.manual_seed(0)
    settings = json.loads(given.deepspeed_config.read_text())
    model, *_ = deepspeed.initialize(model=ByteModel(), config=settings)
    path, state = model.load_checkpoint(str(given.save)) if (given.save / "latest").exists() else (None, {})
    text = torch.frombuffer(bytearray(given.text.read_bytes()), dtype=torch.uint8)
    for step in range(state["step"] if path else 0, given.steps):
        rows = batch_of(text, step, settings["train_micro_batch_size_per_gpu"], 64).to(model.device)
        loss = F.cross_entropy(model(rows[:, :-1]).float().flatten(0, 1), rows[:, 1:].flatten())
        model.backward(loss)
        model.step()
        told = torch.tensor([loss.item(), float(warned[0])], device=model.device)
        dist.all_reduce(told)
        if RANK == 0:
            print(f"step {step + 1} loss {told[0].item() / dist.get_world_size():.6f}", flush=True)
        any_warned = told[1].item() > 0
        if any_warned or (step + 1) % given.save_every == 0 or step + 1 == given.steps:
            model.save_checkpoint(str(given.save), tag=f"step-{step + 1}", client_state={"step": step + 1})
        if any_warned and step + 1 < given.steps:
            if RANK == 0:
                (given.save / "preempted").touch()
            return PREEMPTED
    if RANK == 0:
        (given.save / "preempted").unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
