"""A Hugging Face directory: configuration, index and two shards, through what `chat` and `export` read."""

import json
import struct
from pathlib import Path
from random import Random

import torch

from fuzz.format import Format
from fuzz.mutate import byte_mutator, one_of
from fuzz.suite import check
from fuzz.test_hf_config import CONFIG
from fuzz.trees import json_mutator
from glmforge.checkpoint.convert import export_hf
from glmforge.checkpoint.pretrained import load_pretrained
from glmforge.config.hf import model_fields_from_hf
from glmforge.config.model import ModelConfig
from glmforge.model.transformer import GlmMoe

_SMALL = CONFIG | {
    **{"vocab_size": 32, "hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 8, "moe_intermediate_size": 4},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "n_routed_experts": 4},
    **{"eos_token_id": [3], "pad_token_id": 3},
}
INDEX = "model.safetensors.index.json"


def write(directory: Path) -> None:
    config = ModelConfig(**model_fields_from_hf(_SMALL, "config.json"))
    state = GlmMoe.create(config).state_dict()
    export_hf(state, config, directory / "hf", duplicate_mtp_head=True, max_shard_bytes=8_000)


def read(directory: Path) -> object:
    model = load_pretrained(directory / "hf")
    return model.logits(torch.tensor([[1, 2, 3]])).shape


def _header(content: bytes, rng: Random) -> bytes:
    """Damage to the header's tree, under a length that fits it."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json_mutator(with_bytes=False)(content[8 : 8 + length], rng)
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def _index(content: object):
    def write_it(directory: Path) -> None:
        (directory / "hf" / INDEX).write_text(content if isinstance(content, str) else json.dumps(content))

    return write_it


def _shard(content: bytes, size: int | None = None):
    def write_it(directory: Path) -> None:
        first = min((directory / "hf").glob("*.safetensors"))
        with first.open("wb") as file:
            file.write(content)
            file.truncate(size or len(content))

    return write_it


def _config(**changes: object):
    def write_it(directory: Path) -> None:
        (directory / "hf" / "config.json").write_text(json.dumps(_SMALL | changes))

    return write_it


def _prefixed(header: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header


_ENTRY = b'{"a": {"dtype": "F32", "shape": %s, "data_offsets": [0, %d]}}'

FORMAT = Format(
    name="hf_directory",
    write=write,
    read=read,
    mutators={
        "config.json": json_mutator(),
        INDEX: json_mutator(),
        "*.safetensors": one_of(_header, _header, byte_mutator()),
    },
    bombs={
        "layers": _config(num_hidden_layers=1000),
        "too_many_layers": _config(num_hidden_layers=2**31),
        "experts": _config(n_routed_experts=2**24),
        "layers_and_experts": _config(num_hidden_layers=1000, n_routed_experts=2**20, num_nextn_predict_layers=1000),
        "vocabulary": _config(vocab_size=2**24),
        "width": _config(hidden_size=2**24),
        "index_values_are_numbers": _index({"weight_map": {"a": 1}}),
        "index_values_are_lists": _index({"weight_map": {"a": ["model.safetensors"]}}),
        "index_is_a_list": _index([]),
        "index_leads_out": _index({"weight_map": {"a": "../../../etc/passwd"}}),
        "index_leads_to_zeros": _index({"weight_map": {"a": "/dev/zero"}}),
        "index_has_a_null_byte": _index({"weight_map": {"a": "a\0b"}}),
        "index_names_many_files": _index({"weight_map": {f"t{n}": f"f{n}" for n in range(50_000)}}),
        "index_is_deep": _index("[" * 100_000),
        "index_is_empty": _index({"weight_map": {}}),
        "header_longer_than_the_file": _shard(_prefixed(b"{}", 2**63)),
        "header_of_gigabytes": _shard(_prefixed(b"{}", 2**33), 2**34),
        "header_of_megabytes": _shard(_prefixed(b"{}", 2**24 + 1), 2**25),
        "header_of_spaces": _shard(_prefixed(b"{}" + b" " * (2**24 - 10))),
        "header_is_deep": _shard(_prefixed(b"[" * 1_000_000)),
        "header_of_many_tensors": _shard(_prefixed(json.dumps({f"t{n}": {} for n in range(200_000)}).encode())),
        "tensor_of_petabytes": _shard(_prefixed(_ENTRY % (b"[1099511627776, 1024]", 2**52)), 2**40),
        "shape_overflows": _shard(_prefixed(_ENTRY % (b"[4294967296, 4294967296, 0]", 0))),
        "many_dims": _shard(_prefixed(_ENTRY % (b"[" + b"1," * 5000 + b"1]", 4)) + b"0000"),
        "negative_shape": _shard(_prefixed(_ENTRY % (b"[-1, -1]", 4)) + b"0000"),
        "pickle": _shard(b"\x80\x04cos\nsystem\n(S'true'\ntR."),
    },
)


def test_mutations_and_bombs() -> None:
    check(__name__)
