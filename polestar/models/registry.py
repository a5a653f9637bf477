"""The checkpoints that have a name here, and those that are refused by name.

Contract: plain data. A revision is a full commit hash that public work pins for that repository, or "" where none is known; then the branch
`main` is fetched and the commit that it resolved to is recorded. A licence or size with `?` is to be read from the model card.
"""

from __future__ import annotations

from dataclasses import dataclass

from polestar.models.machine import Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One named checkpoint. `chat`: tuned to follow instructions. `size`: parameters, from which memory follows; None for the bundled
    model, whose size its own config says."""

    name: str
    repo: str
    revision: str
    family: str
    size: Size | None
    licence: str
    chat: bool = True
    about: str = ""


_LLADA = Size(linear=6_979_321_856, other=1_036_259_328)  # 32 layers of 4096 x 4096 (4) and 4096 x 12288 (3); embedding, head, norms
_DREAM = Size(linear=6_525_288_448, other=1_090_328_064)  # 28 layers, 4 K/V heads of 128, 18944; embedding, head, norms, QKV biases

REGISTRY: tuple[Entry, ...] = (
    Entry(
        name="demo", repo="", revision="", family="llada", size=None, licence="MIT",
        about="bundled: a tiny LLaDA for small sums, lists, stories, functions and dates; runs anywhere",
    ),
    Entry(
        name="LLaDA-8B-Instruct", repo="GSAI-ML/LLaDA-8B-Instruct", revision="08b83a6feb34df1a6011b80c3c00c7563e963b07", family="llada",
        size=_LLADA, licence="MIT", about="the paper's main model",
    ),
    Entry(
        name="LLaDA-8B-Base", repo="GSAI-ML/LLaDA-8B-Base", revision="0f2787f2d87eac5eed8a087d5ecd24277e6255b2", family="llada",
        size=_LLADA, licence="MIT", chat=False, about="not tuned for chat",
    ),
    Entry(
        name="LLaDA-1.5", repo="GSAI-ML/LLaDA-1.5", revision="84346fd91ba60252d260022201ad6fc5a3468fb2", family="llada",
        size=_LLADA, licence="MIT ?", about="LLaDA-8B-Instruct after preference tuning",
    ),
    Entry(
        name="Dream-v0-Instruct-7B", repo="Dream-org/Dream-v0-Instruct-7B", revision="05334cb9faaf763692dcf9d8737c642be2b2a6ae",
        family="dream", size=_DREAM, licence="Apache-2.0", about="logits predict the next position; grouped queries",
    ),
    Entry(
        name="Dream-v0-Base-7B", repo="Dream-org/Dream-v0-Base-7B", revision="6572adb5535263e4d1a337b56942ba48b6dee2a9",
        family="dream", size=_DREAM, licence="Apache-2.0", chat=False, about="not tuned for chat",
    ),
    Entry(
        name="Dream-Coder-v0-Instruct-7B", repo="Dream-org/Dream-Coder-v0-Instruct-7B",
        revision="5d9e88c723af9045f362748b5284bdf43d9c501e", family="dream", size=_DREAM, licence="Apache-2.0", about="Dream for code",
    ),
    Entry(
        name="DiffuCoder-7B-Instruct", repo="apple/DiffuCoder-7B-Instruct", revision="4fdd4580064ca5d11808069ce78f88d068753c96",
        family="dream", size=_DREAM, licence="apple-amlr", about="Dream architecture for code; research licence",
    ),
    Entry(
        name="Qwen3-0.6B-diffusion-mdlm-v0.1", repo="dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1", revision="", family="a2d",
        size=Size(linear=440_401_920, other=311_230_464), licence="Apache-2.0 ?", about="Qwen3 made bidirectional; fits a laptop",
    ),
    Entry(
        name="Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1", repo="dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-mdlm-v0.1", revision="",
        family="a2d", size=Size(linear=357_826_560, other=272_340_864), licence="Apache-2.0 ?", about="Qwen2.5-Coder made bidirectional; fits a laptop",
    ),
)  # fmt: skip

_BLOCK_CAUSAL = "it is block-causal: a block never sees the blocks after it, so it has no suffix and its prefix cache is exact"
REFUSED: dict[str, str] = {
    "JetLM/SDAR-1.7B-Chat": _BLOCK_CAUSAL,
    "JetLM/SDAR-4B-Chat": _BLOCK_CAUSAL,
    "Gen-Verse/TraDo-8B-Instruct": _BLOCK_CAUSAL,
    "inclusionAI/LLaDA2.0-mini": _BLOCK_CAUSAL,
    "inclusionAI/LLaDA2.1-mini": _BLOCK_CAUSAL,
    "Efficient-Large-Model/Fast_dLLM_v2_7B": _BLOCK_CAUSAL,
    "dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1": _BLOCK_CAUSAL,
    "dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-bd3lm-v0.1": _BLOCK_CAUSAL,
    "inclusionAI/LLaDA-MoE-7B-A1B-Instruct": "it is a mixture of experts, which this transformer does not have",
    "GSAI-ML/LLaDA-V": "it reads images, which this transformer does not",
}


def find(name: str) -> Entry | None:
    """The entry of a name or repository, capitals ignored; None when it is not registered.

    Raises UnsupportedModel when the name is one that is refused, with the reason.
    """
    from polestar.models.families import UnsupportedModel

    wanted = name.lower()
    for repo, reason in REFUSED.items():
        if wanted in (repo.lower(), repo.split("/")[1].lower()):
            raise UnsupportedModel(f"{repo} cannot be decoded here: {reason}; use a fully bidirectional model such as LLaDA-8B-Instruct")
    return next((e for e in REGISTRY if wanted in (e.name.lower(), e.repo.lower())), None)
