"""What requests may say. Unknown fields and wrong types are errors; a field that OpenAI has and this server has
not is allowed at the one value that changes nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from parallel_r1.types import Size

MOST_CHOICES = 8
MOST_MESSAGES = 256
Fork = Literal["auto", "always", "never"]


def _encodable(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError("must be text that UTF-8 can write: it holds half of a surrogate pair") from error
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Zero = Annotated[float, Field(ge=0, le=0)]
StopText = Annotated[Text, Field(min_length=1, max_length=200)]
TokenId = Annotated[int, Field(ge=0)]


class Body(BaseModel):
    """Base of everything a client sends."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: bool = False
    """Ignored."""


class TextFormat(Body):
    type: Literal["text"]


class Sampling(Body):
    """The fields that both completion endpoints share."""

    model: Annotated[Text, Field(max_length=500)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """All tokens of a response, paths counted. Default: as the model was trained."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    """Same seed, prompt and settings: the same answer. Default: drawn, and told in the reply."""
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=4)] | None = None
    """Ends the main chain; what stands inside of paths does not count."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    fork: Fork = "auto"
    """auto: the model decides. always: a response begins with a block. never: one chain."""
    paths: Annotated[int, Field(ge=1, le=8)] | Literal["auto"] | None = None
    """Paths of a block; "auto" for models that were trained to say how many they want."""
    max_blocks: Annotated[int, Field(ge=0, le=64)] | None = None
    path_budget: Annotated[int, Field(ge=3)] | None = None
    """Tokens of one path, its tags included."""
    show_trace: bool = False
    """Put the whole trace, tags included, into the answer's text."""

    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    user: str | None = None
    """Ignored, as are metadata, store and the keys of caches."""
    metadata: dict[str, str] | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _stream_options_belong_to_streams(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: allowed with stream = true only")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop texts as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class TextPart(Body):
    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """One turn. Other keys are left unread: clients send earlier answers back with all they got."""

    model_config = ConfigDict(extra="ignore", strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart] | None = None

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())


class ChatBody(Sampling):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    """The newer name of max_tokens."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    response_format: TextFormat | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _something_to_answer(self) -> Self:
        if self.messages[-1].role != "user":
            raise ValueError(f"messages: the last one is by {self.messages[-1].role!r}; it must be by 'user'")
        return self


class TextBody(Sampling):
    """``POST /v1/completions``: the prompt as it is, no template around it."""

    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=MOST_CHOICES)]
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[
            list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=MOST_CHOICES)
        ]
    )  # fmt: skip
    logprobs: Annotated[int, Field(ge=0, le=0)] | None = None
    """0: the log-prob of every sampled token. The engine keeps no others."""
    best_of: Annotated[int, Field(ge=1, le=1)] | None = None
    echo: Literal[False] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None


class ProblemPick(Body):
    """Names one generated problem: the same pick is the same problem."""

    task: Annotated[Text, Field(max_length=50)]
    size: Size = "easy"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


class VerdictBody(Body):
    """``POST /playground/verdict``: is this response to that problem right?"""

    problem: ProblemPick
    trace: Annotated[Text, Field(max_length=100_000)]
    """The whole response with its tags."""
