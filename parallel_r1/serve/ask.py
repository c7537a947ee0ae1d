"""A checked body as requests of the engine: prompt ids, settings, seeds. Everything that can be wrong is said here."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Request
from parallel_r1.serve.errors import ApiError, bad_field
from parallel_r1.serve.schema import MOST_CHOICES, ChatBody, Message, Sampling, TextBody
from parallel_r1.serve.served import ServedModel
from parallel_r1.trace.tags import TAGS
from parallel_r1.trace.tokens import encode_prompt, plain_ids

_SLOT = re.compile("\ue000(\\d+)\ue001")
"""Stands for a message while a chat template is filled."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One HTTP request, ready for the engine."""

    chat: bool
    prompts: tuple[tuple[int, ...], ...]
    config: tuple[EngineConfig, ...]
    """One per prompt."""
    num_choices: int
    """Per prompt."""
    seed: int
    stops: tuple[str, ...]
    show_trace: bool
    logprobs: bool
    stream: bool
    include_usage: bool

    def requests(self) -> Iterator[tuple[Request, EngineConfig]]:
        """Every choice of every prompt. Choice 0 is what ``parallel-r1 generate --seed`` decodes."""
        for prompt, config in zip(self.prompts, self.config, strict=True):
            for sample in range(self.num_choices):
                yield Request("request", prompt, (self.seed, 0, 0, sample)), config


def read_ask(served: ServedModel, body: ChatBody | TextBody) -> Ask:
    """Turn a body into requests.

    Raises:
        ApiError: an unknown model, or fields that do not fit it or each other.
    """
    if body.model != served.name:
        raise ApiError(
            404, f"model = {body.model!r}: no such model here; this server has {served.name!r}", "model",
            "model_not_found",
        )  # fmt: skip
    chat = isinstance(body, ChatBody)
    prompts = [chat_ids(served, body.messages)] if isinstance(body, ChatBody) else text_ids(served, body)
    num_choices = body.n or 1
    if len(prompts) * num_choices > MOST_CHOICES:
        raise bad_field("n", num_choices, f"times {len(prompts)} prompts makes more than {MOST_CHOICES} answers")
    return Ask(
        chat=chat,
        prompts=tuple(prompts),
        config=tuple(engine_config(served, body, len(prompt)) for prompt in prompts),
        num_choices=num_choices,
        seed=secrets.randbelow(2**53) if body.seed is None else body.seed,
        stops=body.stops,
        show_trace=body.show_trace,
        logprobs=bool(body.logprobs) if chat else body.logprobs is not None,
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
    )


def engine_config(served: ServedModel, body: Sampling, num_prompt_tokens: int) -> EngineConfig:
    """The settings of one response: the served model's, with what the body changes."""
    names = ("paths", "max_blocks", "path_budget", "temperature", "top_p", "top_k")
    changes: dict[str, Any] = {name: value for name in names if (value := getattr(body, name)) is not None}
    merged = {**served.config.model_dump(), **changes}
    merged["max_response_tokens"], field = _response_limit(served, body, num_prompt_tokens, merged)
    always = body.fork == "always"
    try:
        one_chain = EngineConfig.model_validate({**merged, "mode": "sequential"})
    except ValidationError as error:
        raise _refused(error, "paths") from error
    if served.tags is None or body.fork == "never":
        if always:
            raise bad_field("fork", "always", f"{served.name} has no tags and cannot fork; use 'auto' or 'never'")
        return one_chain
    if always and not merged["max_blocks"]:
        raise bad_field("max_blocks", 0, "fork = 'always' needs at least 1")
    try:
        return EngineConfig.model_validate({**merged, "mode": "forked", "force_fork": always})
    except ValidationError as error:
        if always:
            raise _refused(error, field) from error
        return one_chain  # there is no room for a block: both decode the same


def _refused(error: ValidationError, field: str) -> ApiError:
    """What the engine's settings say against a request."""
    said = str(error.errors()[0]["msg"]).removeprefix("Value error, ").replace("engine.", "")
    return ApiError(400, f"{field}: {said}", field, "invalid_value")


def _response_limit(
    served: ServedModel, body: Sampling, num_prompt_tokens: int, merged: dict[str, Any]
) -> tuple[int, str]:
    """The response's token limit and the field that gives it; without one, as trained and as far as it fits."""
    newer = body.max_completion_tokens if isinstance(body, ChatBody) else None
    field = "max_tokens" if newer is None else "max_completion_tokens"
    asked = body.max_tokens if newer is None else newer
    room = served.context - num_prompt_tokens
    if room < 1 or (asked is not None and asked > room):
        prompt = "messages" if isinstance(body, ChatBody) else "prompt"
        wanted = f"{num_prompt_tokens} tokens" + (f" and {field} = {asked}" if asked is not None else "")
        raise ApiError(
            400, f"{prompt}: {wanted} do not fit the context of {served.context} tokens",
            prompt if room < 1 else field, "context_length_exceeded",
        )  # fmt: skip
    if asked is not None:
        return asked, field
    widest, usual = (_most_paths(config) for config in (merged, served.config.model_dump()))
    return min(int(served.config.max_response_tokens * max(1, widest / usual)), room), field


def _most_paths(config: dict[str, Any]) -> int:
    return config["paths"] if isinstance(config["paths"], int) else config["max_paths"]


# --- prompts ---


def chat_ids(served: ServedModel, messages: Sequence[Message]) -> tuple[int, ...]:
    """A conversation as ids. User text can make no tag and no marker of the template.

    A model that was trained here takes one question: the texts of all messages, with blank lines between them.
    """
    texts = [message.text for message in messages]
    if not texts[-1].strip():
        raise bad_field(f"messages[{len(texts) - 1}].content", texts[-1], "must hold text")
    if served.template is None:
        return _from_chat_template(served, messages)
    question = "\n\n".join(text for text in texts if text.strip())
    return _encoded(served, served.template, question, "messages")


def text_ids(served: ServedModel, body: TextBody) -> list[tuple[int, ...]]:
    """The prompts of a completion as ids."""
    if isinstance(body.prompt, str):
        return [_encoded(served, "{question}", body.prompt, "prompt")]
    if all(isinstance(item, int) for item in body.prompt):
        return [_known_ids(served, body.prompt, "prompt")]
    return [
        _encoded(served, "{question}", item, f"prompt[{i}]")
        if isinstance(item, str)
        else _known_ids(served, item, f"prompt[{i}]")
        for i, item in enumerate(body.prompt)
    ]


def _encoded(served: ServedModel, template: str, text: str, field: str) -> tuple[int, ...]:
    try:
        ids = tuple(encode_prompt(served.tokenizer, template, text, served.tags))
    except ValueError as error:
        raise ApiError(400, f"{field}: {error}", field, "invalid_value") from error
    if not ids:
        raise bad_field(field, text, "must hold text")
    return ids


def _known_ids(served: ServedModel, ids: Any, field: str) -> tuple[int, ...]:
    size = len(served.tokenizer)
    tags = served.tags.all if served.tags else frozenset()
    for place, token in enumerate(ids):
        if token >= size or token in tags:
            raise bad_field(f"{field}[{place}]", token, f"ids go from 0 to {size - 1}, tags are not allowed")
    return tuple(ids)


def _from_chat_template(served: ServedModel, messages: Sequence[Message]) -> tuple[int, ...]:
    """Fill the tokenizer's own template with placeholders, then put the texts in as plain ids."""
    tokenizer = served.tokenizer
    turns = [{"role": m.role, "content": f"\ue000{i}\ue001"} for i, m in enumerate(messages)]
    try:
        page = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # templates raise what they like
        raise ApiError(400, f"messages: the model's chat template refuses them ({error})", "messages") from error
    markers = sorted((t for t in tokenizer.all_special_tokens if t and t not in TAGS), key=len, reverse=True)
    cut = re.compile("(" + "|".join([_SLOT.pattern.replace("(\\d+)", "\\d+"), *map(re.escape, markers)]) + ")")
    ids: list[int] = []
    run = ""
    for part in cut.split(page):
        if slot := _SLOT.fullmatch(part):
            run += messages[int(slot[1])].text
        elif part in markers:
            ids += [*plain_ids(tokenizer, run), int(tokenizer.convert_tokens_to_ids(part))]  # pyright: ignore[reportArgumentType]
            run = ""
        else:
            run += part
    ids += plain_ids(tokenizer, run)
    if served.tags is not None and not served.tags.all.isdisjoint(ids):
        raise ApiError(400, "messages: the tokenizer makes tags of their text", "messages", "invalid_value")
    return tuple(ids)
