"""Errors in the form that OpenAI clients read: a message that names field, value and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

_LONGEST_VALUE = 80
_STEP = re.compile(r"[.\[]")


class ApiError(HTTPException):
    """What a client is told: ``{"error": {"message", "type", "param", "code"}}``."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.param, self.code = param, code

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object."""
        # Nothing a client sent may break the reply: lone surrogates cannot be encoded.
        message = self.detail.encode("utf-8", "backslashreplace").decode("utf-8")
        param = self.param and self.param.encode("ascii", "backslashreplace").decode("ascii")
        return {"error": {"message": message, "type": _kind(self.status_code), "param": param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The whole reply."""
        return JSONResponse(self.body, self.status_code, self.headers)


def bad_field(param: str, value: Any, allowed: str, code: str | None = "invalid_value") -> ApiError:
    """A 400 that names the field, its value and what is allowed instead."""
    return ApiError(400, f"{param} = {shown(value)}: {allowed}", param, code)


def shown(value: Any) -> str:
    """A value of a client's, short and printable."""
    text = ascii(value) if not isinstance(value, int) or abs(value) < 10**_LONGEST_VALUE else "a huge number"
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def from_validation(problems: Iterable[Mapping[str, Any]], body: Any) -> ApiError:
    """The first field that pydantic complains of, with all it says of it.

    Where a field may be of several kinds, pydantic tries each. The complaint that lies deepest is of the kind
    that was meant.
    """
    found: dict[str, tuple[Any, list[str], str]] = {}
    for problem in problems:
        if problem["type"] == "json_invalid":
            return ApiError(400, f"the body is no JSON: {problem.get('ctx', {}).get('error', 'cannot be read')}")
        where, value = _place(problem["loc"][1:] if problem["loc"][:1] == ("body",) else problem["loc"], body)
        said = found.setdefault(where, (value, [], problem["type"]))[1]
        said.append(str(problem["msg"]).removeprefix("Value error, "))
    first = next(iter(found))
    param = max((where for where in found if where.startswith(first)), key=lambda where: len(_STEP.findall(where)))
    value, said, kind = found[param]
    message = " or: ".join(dict.fromkeys(said))
    if not param:
        return ApiError(400, f"the body: {message}", None, "invalid_value")
    if kind == "missing":
        return ApiError(400, f"{param}: missing; add it", param, "missing_required_parameter")
    return bad_field(param, value, message)


def _place(location: Sequence[Any], body: Any) -> tuple[str, Any]:
    """``messages[0].content`` and the value there, without what pydantic adds (names of union members)."""
    name, value = "", body
    for number, part in enumerate(location):
        if isinstance(value, dict) and part in value:
            name, value = f"{name}.{part}" if name else str(part), value[part]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            name, value = f"{name}[{part}]", value[part]
        elif number == len(location) - 1 and isinstance(value, dict):  # a missing key
            name = f"{name}.{part}" if name else str(part)
    return name, value


def _kind(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "authentication_error" if status == 401 else "invalid_request_error"
