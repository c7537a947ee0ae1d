"""What ``/metrics`` shows, in the text format of Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from parallel_r1.engine.base import Request
from parallel_r1.types import Rollout

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """One server's figures, in a registry of their own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, num_open: Callable[[], int] = lambda: 0) -> None:
        self.registry = CollectorRegistry()
        self._responses = Counter(
            "parallel_r1_responses", "Responses that have ended.", ["reason"], registry=self.registry
        )
        self._tokens = Counter("parallel_r1_tokens", "Tokens.", ["kind"], registry=self.registry)
        self._blocks = Counter("parallel_r1_blocks", "Blocks of parallel paths.", registry=self.registry)
        self._replies = Counter(
            "parallel_r1_http_replies", "HTTP replies.", ["route", "status"], registry=self.registry
        )
        self.first_token = Histogram(
            "parallel_r1_first_token_seconds", "From request to first token.", buckets=_SECONDS, registry=self.registry
        )
        self._duration = Histogram(
            "parallel_r1_response_seconds", "From request to last token.", buckets=_SECONDS, registry=self.registry
        )
        self.steps = Histogram(
            "parallel_r1_step_seconds", "One decoding step.", buckets=_SECONDS, registry=self.registry
        )
        self._active = Gauge("parallel_r1_rows_active", "Responses that hold memory.", registry=self.registry)
        self._waiting = Gauge("parallel_r1_rows_waiting", "Responses that wait for a row.", registry=self.registry)
        unfinished = Gauge("parallel_r1_responses_open", "Responses that have not ended.", registry=self.registry)
        unfinished.set_function(lambda: num_open())
        self.mean_seconds = 1.0
        """Running mean of how long a response takes."""

    def rows(self, active: int, waiting: int) -> None:
        """Who holds memory, and who waits for it."""
        self._active.set(active)
        self._waiting.set(waiting)

    def ended(self, submitted: float, request: Request, rollout: Rollout | None, cancelled: bool) -> None:
        """A response has ended, in whatever way."""
        seconds = time.monotonic() - submitted
        reason = "cancelled" if cancelled else rollout.stop_reason if rollout else "error"
        self._responses.labels(reason).inc()
        if rollout is None:
            return
        self._tokens.labels("prompt").inc(len(request.prompt_ids))
        self._tokens.labels("response").inc(rollout.total_tokens)
        self._tokens.labels("critical_path").inc(rollout.critical_tokens)
        self._blocks.inc(rollout.num_blocks)
        if not cancelled:
            self._duration.observe(seconds)
            self.mean_seconds += 0.1 * (seconds - self.mean_seconds)

    def reply(self, route: str, status: int) -> None:
        """An HTTP reply has begun."""
        self._replies.labels(route, str(status)).inc()

    def page(self) -> bytes:
        """All figures as text."""
        return generate_latest(self.registry)
