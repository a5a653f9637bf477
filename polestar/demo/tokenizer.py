"""The tokenizer of the bundled model: byte-level BPE over the generators' vocabulary, with LLaDA's special tokens and chat format.

Contract: any UTF-8 text encodes and decodes back; every number from 0 to 99 and every word of the generators is one token, with and without the
space before it (numbers and words are split from each other first, so merges never cross).
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from polestar.demo.problems import FAMILIES, generate

EOS, MASK, BOS, START, END, EOT = "<|endoftext|>", "<|mdm_mask|>", "<|startoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"
SPECIAL = [EOS, MASK, BOS, START, END, EOT]
EOS_ID, MASK_ID = 0, 1
SPLIT = r" ?\p{N}+| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first %}<|startoftext|>{% endif %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


def chat(prompt: str) -> str:
    """The prompt as the model sees it: one user turn, then the head of the assistant's."""
    return f"{BOS}{START}user{END}\n\n{prompt}{EOT}{START}assistant{END}\n\n"


def train_tokenizer(*, problems_per_family: int = 3000, seed: int = 1) -> Tokenizer:
    """Train on generated text. Every piece that occurs becomes whole, because each is fed often and the size is set to fit."""
    pieces: Counter[str] = Counter()
    for family in FAMILIES:
        rng = random.Random(f"tokenizer/{family}/{seed}")
        for _ in range(problems_per_family):
            problem = generate(family, rng)
            for text in (chat(problem.prompt), problem.answer):
                pieces.update(re.findall(r" ?[0-9]+| ?[^\W\d_]+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+", re.sub(r"<\|\w+\|>", "", text)))
    pieces = Counter({p: max(3, n) for p, n in pieces.items() if n > 1 and not (p.strip().isdigit() and len(p.strip()) > 2)})
    for n in range(100):
        pieces[f" {n}"] += 50
        pieces[f"{n}"] += 50
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8000,
        min_frequency=2,
        special_tokens=[AddedToken(t, special=True) for t in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    corpus = [p for p, n in sorted(pieces.items()) for _ in range(min(n, 200))]
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """tokenizer.json and tokenizer_config.json, as the hub lays them out."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 1024,
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "mask_token": MASK,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(i): {"content": t, "special": True, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False} for i, t in enumerate(SPECIAL)
        },
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
