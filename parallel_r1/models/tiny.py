"""The tokenizer and the shape of the built-in tiny models.

The vocabulary is printable ASCII, one character a token, with a few words of the tasks as tokens of
their own. It has no tags: they enter through the same door as for any other model.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3Config

WORDS = ("make", " from", "compute", "run", "think in paths: ", " ok", " no", " none", " so", "Final Answer:")
PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer over `WORDS`, newline and the 95 printable ASCII characters."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = ["\n", *map(chr, range(32, 127))]
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, UNK, *WORDS, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    longest_first = sorted(map(re.escape, WORDS), key=len, reverse=True)
    pattern = Regex("|".join([*longest_first, r"[\s\S]"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        clean_up_tokenization_spaces=False,
    )


def tiny_config(vocab_size: int, eos_token_id: int, pad_token_id: int) -> Qwen3Config:
    """The Qwen3 shape of the built-in models (about 1.6 million parameters)."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=192,
        intermediate_size=576,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        initializer_range=0.06,
        tie_word_embeddings=True,
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
        bos_token_id=None,
    )
