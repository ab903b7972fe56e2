"""`rl.engine`: a server that samples the answers of a run in place of the engine in its own processes."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from glmforge.config.fields import YamlPath
from glmforge.config.model import Strict


class RlEngineConfig(Strict):
    """Servers that have the policy's weights, how they are reached, started and given new weights."""

    kind: Literal["glmforge", "vllm", "sglang"] = Field(
        description="glmforge: `glmforge serve --allow-weight-updates`; vllm, sglang: their servers. The first is sent "
        "weights over HTTP, the others read them from `directory`"
    )
    urls: list[str] = Field(min_length=1, description="addresses of the servers; ranks share them in turn")
    command: list[str] | None = Field(
        default=None,
        min_length=1,
        description="starts a server on the machine of rank 0, and again when it dies; {weights} is a directory with "
        "weights, {host} and {port} are the URL's. None: they are started separately, and the run ends when one dies",
    )
    restart: bool = Field(
        default=False,
        description="of kind vllm: start servers anew with every version of the weights, instead of having them read "
        "it, which vLLM's build for processors does wrong",
    )
    api_key_env: str | None = Field(default=None, description="environment variable with the servers' API key")
    directory: YamlPath | None = Field(
        default=None, description="of weights in files, which ranks and servers see; None: engine/ of the run"
    )
    dtype: Literal["bf16", "fp32"] = Field(default="bf16", description="type of the weights in files")
    bucket_bytes: PositiveInt = Field(
        default=1 << 28,
        description="weights that a rank puts together at a time, for which it needs up to 7 times the memory",
    )
    connections: PositiveInt = Field(default=64, description="groups that a rank has a server answer at the same time")
    timeout_s: PositiveFloat = Field(
        default=600.0,
        description="for one request, pauses for new weights included, after which its server counts as dead",
    )
    start_s: PositiveFloat = Field(default=600.0, description="for a server to answer after its start")
    max_restarts: int = Field(default=10, ge=0, description="of dead servers in a run, after which it ends")
