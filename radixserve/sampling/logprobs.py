"""Log-probabilities of tokens: log-softmax of the raw logits, natural logarithm.

Owns: TokenLogprobs from logits, for tokens just drawn and for tokens of a prompt. Must not know:
penalties, masks and temperature, which do not touch these numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from radixserve.plan import Int32, TokenLogprobs
from radixserve.sampling.ranking import rank

SCORE_BLOCK = 128  # positions whose logits exist at once


def token_logprobs(
    logits: torch.Tensor,
    targets: Int32,
    top: int,
    valid_ids: int | None = None,
    named: tuple[int, ...] = (),
) -> TokenLogprobs:
    """Log-probabilities of one target for each position, and of the `top` best beside it.

    logits: [n, vocab], any float dtype. targets: [n] int32. valid_ids: ids from there on are rows
    that no token has; they count in the softmax as they do in the model, and are not reported.
    Equal values are listed by ascending id, so the list for a smaller top begins the larger one.
    named: ids that are reported behind the best, whether they are among those or not.
    """
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    picked = torch.from_numpy(targets.astype(np.int64)).to(logits.device)
    chosen = logprobs.gather(1, picked[:, None])[:, 0].cpu().numpy()
    valid = logprobs[:, :valid_ids]
    empty = (len(targets), 0)
    best, ids = np.zeros(empty, np.float32), np.zeros(empty, np.int32)
    if top:
        best, ranked = rank(valid, min(top, valid.shape[1]))
        ids = ranked.astype(np.int32)
    if named:
        values = logprobs[:, torch.tensor(named, device=logits.device)].cpu().numpy()
        more = np.broadcast_to(np.asarray(named, np.int32), values.shape)
        best, ids = np.concatenate((best, values), axis=1), np.concatenate((ids, more), axis=1)
    return TokenLogprobs(chosen, ids, best)


def score_tokens(
    hidden: torch.Tensor,
    to_logits: Callable[[torch.Tensor], torch.Tensor],
    targets: Int32,
    top: int,
    valid_ids: int | None = None,
    named: tuple[int, ...] = (),
) -> TokenLogprobs:
    """token_logprobs for the positions of a prompt, from their final hidden states.

    hidden: [n, hidden_size], n >= 1. to_logits: [m, hidden_size] -> [m, vocab]; called on at most
    SCORE_BLOCK positions at a time, so that a long prompt never has all its logits in memory.
    targets: [n] int32, targets[i] scored by hidden[i].
    """
    parts = [
        token_logprobs(
            to_logits(hidden[begin : begin + SCORE_BLOCK]),
            targets[begin : begin + SCORE_BLOCK],
            top,
            valid_ids,
            named,
        )
        for begin in range(0, len(targets), SCORE_BLOCK)
    ]
    return TokenLogprobs(
        np.concatenate([part.chosen for part in parts]),
        np.concatenate([part.top_ids for part in parts]),
        np.concatenate([part.top for part in parts]),
    )
