"""Tags in a tokenizer: adding them, looking them up, and text to ids and back without losing them.

The tags are ordinary added tokens, not special ones, so that decoding never drops them. The price
is that a tokenizer would also find them in a user's text (``split_special_tokens`` only covers
special tokens). So text that must not make tags is encoded by a copy of the tokenizer that has never
heard of them: tag text in a question becomes the same ids as before the tags were added.

Not here: chat templates. A template is a plain string with ``{question}``; special tokens of the
model in it (``<|im_start|>``) are put in by id, in the question they are plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from parallel_r1.config import MAX_PATHS
from parallel_r1.trace.tags import TAGS, TagIds

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

NOISE = 0.1
"""Noise on a new row, as a share of the standard deviation of the embedding: tags must differ."""
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>")
_TAG = re.compile("(" + "|".join(map(re.escape, TAGS)) + ")")
_BLANK_MARKS = str.maketrans({"Ġ": " ", "Ċ": "\n", "ĉ": "\t", "č": "\r", "▁": " "})
_PLAIN: WeakKeyDictionary[Any, tuple[int, Tokenizer]] = WeakKeyDictionary()


def add_tags(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> TagIds:
    """Add the six tags, resize the embeddings to ``len(tokenizer)`` and write the new rows.

    A new row (input and, where untied, output) is the mean of the rows of the tag's text pieces plus
    a little noise drawn from ``seed``. Calling it again changes nothing.

    Raises:
        ValueError: the tokenizer cannot take the tags, or the model cannot take the rows.
    """
    missing = [tag for tag in TAGS if _token_id(tokenizer, tag) is None]
    if missing:
        _add_tokens(tokenizer, missing)
    tags = tag_ids(tokenizer)
    old_rows = _vocabulary_weights(model)[0].shape[0]
    fresh = [
        (tag, token)
        for tag, token in zip(TAGS, tags.in_order, strict=True)
        if tag in missing or token >= old_rows
    ]  # fmt: skip
    if max(tags.in_order) >= len(tokenizer):
        raise ValueError(
            f"tokenizer {_name(tokenizer)}: tag ids reach {max(tags.in_order)} but it counts {len(tokenizer)} tokens "
            "(its ids have gaps); renumber the added tokens"
        )
    if old_rows != len(tokenizer):
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    if fresh:
        pieces = {token: plain_ids(tokenizer, tag) for tag, token in fresh}
        for weight in _vocabulary_weights(model):
            _write_rows(weight, pieces, seed)
    _check_model(model, tokenizer)
    return tags


def tag_ids(tokenizer: PreTrainedTokenizerBase) -> TagIds:
    """The ids of the six tags.

    Raises:
        ValueError: a tag is missing (each one is named), or is not one token, or would be lost on saving.
    """
    ids = [_token_id(tokenizer, tag) for tag in TAGS]
    missing = [tag for tag, token in zip(TAGS, ids, strict=True) if token is None]
    if missing:
        raise ValueError(
            f"tokenizer {_name(tokenizer)} lacks the tags {' '.join(missing)}; add them with "
            "parallel_r1.trace.tokens.add_tags(model, tokenizer), or load a cold-started model"
        )
    for tag, token in zip(TAGS, ids, strict=True):
        got = tokenizer.encode(tag, add_special_tokens=False)
        if got != [token]:
            raise ValueError(
                f"tokenizer {_name(tokenizer)}: {tag} is encoded as {got}, not as its one id {token}; "
                "add it as an added token with add_tags"
            )
    if len(set(ids)) != len(TAGS):
        raise ValueError(f"tokenizer {_name(tokenizer)}: two tags share an id ({ids}); use a clean tokenizer")
    newline = tuple(plain_ids(tokenizer, "\n"))
    return TagIds(*ids, newline=newline, blank=_blank_ids(tokenizer), counts=_count_ids(tokenizer))  # pyright: ignore[reportArgumentType]


def stop_ids(tokenizer: PreTrainedTokenizerBase, model_config: Any, generation_config: Any = None) -> tuple[int, ...]:
    """All ids that end a response: the end of text of tokenizer and configs, and the ends of a chat turn.

    A config's id counts only where it is a special or added token: the default of a config class
    (2 for Llama) may be any letter of another tokenizer.

    Raises:
        ValueError: there is none, so that a response could never stop.
    """
    eos: Any = tokenizer.eos_token_id
    unknown: Any = tokenizer.unk_token_id
    known = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder} - {unknown}
    found: list[Any] = []
    for config in (generation_config, model_config):
        value = getattr(config, "eos_token_id", None)
        found += value if isinstance(value, list | tuple) else [value]
    found += [_token_id(tokenizer, end) for end in TURN_ENDS]
    ids = tuple(dict.fromkeys(token for token in [eos, *found] if token is not None and token in {*known, eos}))
    if not ids:
        raise ValueError(f"tokenizer {_name(tokenizer)} has no end-of-text token; set tokenizer.eos_token")
    return ids


def encode_prompt(tokenizer: PreTrainedTokenizerBase, template: str, question: str, tags: TagIds | None) -> list[int]:
    """A question in its template as ids: never a tag id, no end of text.

    A beginning of text is put first where the tokenizer itself does so.

    Raises:
        ValueError: the template has no ``{question}``, or a tag id came out after all.
    """
    if template.count("{question}") != 1:
        raise ValueError(f"prompt template {template!r} must contain {{question}} exactly once")
    markers = [token for token in tokenizer.all_special_tokens if token and token not in TAGS]
    ids = [] if template.startswith(tuple(markers)) else _opening(tokenizer)
    run = ""
    before, after = template.split("{question}")
    for piece in [*_split_at(before, markers), None, *_split_at(after, markers)]:
        if piece is None:
            run += question
        elif piece in markers:
            ids += [*plain_ids(tokenizer, run), tokenizer.convert_tokens_to_ids(piece)]
            run = ""
        else:
            run += piece
    ids += plain_ids(tokenizer, run)
    if tags is not None and not tags.all.isdisjoint(ids):
        raise ValueError(
            f"tokenizer {_name(tokenizer)} makes tag ids from the text of a prompt ({question[:60]!r}); "
            "its base vocabulary holds the tags: use a tokenizer where they are added tokens"
        )
    return ids


def encode_trace(tokenizer: PreTrainedTokenizerBase, text: str, tags: TagIds | None) -> list[int]:
    """A trace as ids: tags become their one id, all other text is plain. No end of text is added.

    ``tags`` None: the tags are plain text too.
    """
    if tags is None:
        return plain_ids(tokenizer, text)
    by_text = dict(zip(TAGS, tags.in_order, strict=True))
    ids: list[int] = []
    for piece in _TAG.split(text):
        if piece in by_text:
            ids.append(by_text[piece])
        elif piece:
            ids += plain_ids(tokenizer, piece)
    return ids


def decode_response(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> str:
    """Response ids as text: tags kept, end of text and padding at its end removed."""
    row = [int(token) for token in ids]
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    ends = [eos, pad, *(_token_id(tokenizer, end) for end in TURN_ENDS)]
    while row and row[-1] in ends:
        row.pop()
    return str(tokenizer.decode(row, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Text as ids with nothing added, where tags and special tokens are ordinary text."""
    return _without_tags(tokenizer).encode(text, add_special_tokens=False).ids if text else []


def _without_tags(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """A copy of the tokenizer that has no tags and splits special tokens; made once."""
    from tokenizers import Tokenizer

    known = _PLAIN.get(tokenizer)
    if known is not None and known[0] == len(tokenizer):
        return known[1]
    state = json.loads(_backend(tokenizer).to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in TAGS]
    copy = Tokenizer.from_str(json.dumps(state))
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = True
    _PLAIN[tokenizer] = (len(tokenizer), copy)
    return copy


def _backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not hasattr(backend, "to_str"):
        raise ValueError(
            f"tokenizer {_name(tokenizer)} is not backed by the `tokenizers` library, so tags in a user's text "
            "cannot be told from real ones; use the model's fast tokenizer (a tokenizer.json)"
        )
    return backend


def _token_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int | None:
    return _backend(tokenizer).token_to_id(token)


def _name(tokenizer: PreTrainedTokenizerBase) -> str:
    return repr(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)


def _add_tokens(tokenizer: PreTrainedTokenizerBase, missing: Sequence[str]) -> None:
    """Add tags to the tokenizer and see that its saved form keeps them."""
    from tokenizers import Tokenizer
    from transformers import AddedToken

    added = tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in missing])  # pyright: ignore[reportArgumentType]
    reloaded = Tokenizer.from_str(_backend(tokenizer).to_str())
    lost = [tag for tag in missing if reloaded.token_to_id(tag) != _token_id(tokenizer, tag)]
    if added != len(missing) or lost:
        raise ValueError(
            f"tokenizer {_name(tokenizer)} took {added} of the tags {' '.join(missing)}"
            + (f" and would lose {' '.join(lost)} on saving" if lost else "")
            + "; use a tokenizer with room for added tokens"
        )


def _vocabulary_weights(model: PreTrainedModel) -> list[torch.Tensor]:
    """The (V, hidden) matrices with one row per token: one when tied; else the output's too, and its bias."""
    weights: list[torch.Tensor] = [model.get_input_embeddings().weight]  # pyright: ignore[reportAssignmentType]
    output = model.get_output_embeddings()
    if output is not None and output.weight is not weights[0]:
        weights.append(output.weight)  # pyright: ignore[reportArgumentType]
    bias = getattr(output, "bias", None)
    return [*weights, bias] if bias is not None else weights


def _write_rows(weight: torch.Tensor, pieces: dict[int, list[int]], seed: int) -> None:
    import torch

    generator = torch.Generator().manual_seed(seed)
    old = [row for row in range(weight.shape[0]) if row not in pieces]
    with torch.no_grad():
        scale = NOISE * float(weight[old].float().std())
        for token, parts in pieces.items():
            mean = weight[parts].float().mean(dim=0)
            noise = torch.randn(mean.shape, generator=generator).to(mean.device)
            weight[token] = (mean + scale * noise).to(weight.dtype)


def _check_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Rows, finite values, and a tie flag that says what the weights do: else saving loses rows."""
    import torch

    for weight in _vocabulary_weights(model):
        if weight.shape[0] != len(tokenizer) or not bool(torch.isfinite(weight).all()):
            raise ValueError(
                f"model {type(model).__name__}: {tuple(weight.shape)} embedding rows, finite or not, do not fit "
                f"{len(tokenizer)} tokens; use a model whose embeddings can be resized"
            )
    output = model.get_output_embeddings()
    if output is None:
        return
    tied = output.weight is model.get_input_embeddings().weight
    if tied != bool(getattr(model.config, "tie_word_embeddings", False)):
        raise ValueError(
            f"model {type(model).__name__}: config.tie_word_embeddings = {model.config.tie_word_embeddings} but its "
            f"input and output embeddings are {'one' if tied else 'two'}; set the flag to {tied}"
        )


def _blank_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids that decode to white space alone. Only tokens that look it are decoded."""
    candidates = [
        token
        for piece, token in tokenizer.get_vocab().items()
        if piece.translate(_BLANK_MARKS).isspace() or piece in ("<0x09>", "<0x0A>", "<0x0D>", "<0x20>")
    ]
    return frozenset(token for token in candidates if not str(tokenizer.decode([token])).strip())


def _count_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The ids of "1" .. "8" as a block may name the number of its paths; empty unless each is one token."""
    ids = [plain_ids(tokenizer, str(number)) for number in range(1, MAX_PATHS + 1)]
    return tuple(i[0] for i in ids) if all(len(i) == 1 for i in ids) and len({*map(tuple, ids)}) == MAX_PATHS else ()


def _opening(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The beginning-of-text id, if the tokenizer's own convention puts one before a text."""
    bos: Any = tokenizer.bos_token_id
    first, bare = tokenizer.encode("a")[0], tokenizer.encode("a", add_special_tokens=False)[0]
    return [bos] if bos is not None and first == bos != bare else []


def _split_at(text: str, markers: Sequence[str]) -> list[str]:
    if not markers:
        return [text]
    longest_first = sorted(markers, key=len, reverse=True)
    return re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text)
