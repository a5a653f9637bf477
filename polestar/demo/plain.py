"""A plain batched decode on full passes, for choosing checkpoints while training. The engine's decoders are the real thing.

Contract: semi-autoregressive over blocks of 32; each pass commits the most confident masked position of the block, and those at or above `threshold`.
"""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from torch import Tensor

from polestar.demo.batches import BLOCK
from polestar.demo.problem import Problem
from polestar.demo.tokenizer import EOS_ID, MASK_ID, chat
from polestar.models.transformer import Transformer


@torch.inference_mode()
def decode(model: Transformer, prompt: list[int], *, gen_length: int, threshold: float = 2.0) -> tuple[Tensor, int]:
    """Generated ids [gen_length] and the number of passes. Stops once [EOS] is committed and everything before it is."""
    start, length = len(prompt), len(prompt) + gen_length
    x = torch.full((1, length), MASK_ID)
    x[0, :start] = torch.tensor(prompt)
    passes = 0
    for s in range(start, length, BLOCK):
        e = min(s + BLOCK, length)
        while (masked := x[0, s:e] == MASK_ID).any():
            logits = model(x)[0, s:e]
            logits[:, MASK_ID] = -torch.inf
            confidence, token = torch.softmax(logits, -1).max(-1)
            confidence = confidence.masked_fill(~masked, -1)
            take = confidence >= min(threshold, 1.5)
            take[confidence.argmax()] = True
            x[0, s:e][take] = token[take]
            passes += 1
            ends = (x[0, s:e] == EOS_ID).nonzero()
            if len(ends) and not (x[0, s : s + int(ends[0])] == MASK_ID).any():
                x[0, s + int(ends[0]) :] = EOS_ID
                return x[0, start:], passes
    return x[0, start:], passes


def accuracy(model: Transformer, tokenizer: Tokenizer, problems: list[Problem], *, gen_length: int = 128, threshold: float = 2.0) -> tuple[float, float]:
    """Share of right answers and tokens per pass (non-[EOS])."""
    right = tokens = passes = 0
    for problem in problems:
        ids, n = decode(model, tokenizer.encode(chat(problem.prompt)).ids, gen_length=gen_length, threshold=threshold)
        kept = [i for i in ids.tolist() if i != EOS_ID]
        right += not problem.check(tokenizer.decode(kept))
        tokens, passes = tokens + len(kept), passes + n
    return right / len(problems), tokens / passes
