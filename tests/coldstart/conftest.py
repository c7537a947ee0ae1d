"""A real HTTP server that speaks the chat protocol, and misbehaves when it is told to."""

import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Server(ThreadingHTTPServer):
    """``behave(question, nth) -> behaviour`` decides over the nth request for a question; see `Handler.do_POST`."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, behave):
        super().__init__(("127.0.0.1", 0), Handler)
        self.behave = behave
        self.lock = threading.Lock()
        self.seen, self.bodies, self.times = Counter(), [], []
        self.headers_seen = []
        self.open = self.most_open = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, request, client_address):
        """Clients that hang up are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    """Behaviours: a text (a good reply), an int (that status), or one of the words in `do_POST`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        question = body["messages"][-1]["content"].strip().splitlines()[-1]
        with server.lock:
            server.seen[question] += 1
            nth = server.seen[question]
            server.bodies.append(body)
            server.headers_seen.append(dict(self.headers))
            server.times.append(time.monotonic())
            server.open += 1
            server.most_open = max(server.most_open, server.open)
        try:
            self.answer(self.path, server.behave(question, nth))
        finally:
            with server.lock:
                server.open -= 1

    def answer(self, path, behaviour):
        headers = {}
        if isinstance(behaviour, tuple):
            behaviour, headers = behaviour
        if not path.endswith("/v1/chat/completions"):
            behaviour = 404
        if isinstance(behaviour, int):
            self.whole(behaviour, json.dumps({"error": {"message": f"said {behaviour}"}}), headers)
        elif behaviour == "garbage":
            self.whole(200, "<html>out of order</html>", headers)
        elif behaviour == "half json":
            self.whole(200, json.dumps({"choices": []}), headers)
        elif behaviour == "garbage in stream":
            self.stream(["data: {not json\n\n"])
        elif behaviour == "error in stream":
            self.stream(['data: {"error": {"message": "overloaded"}}\n\n'])
        elif behaviour == "cut":
            self.stream([event("half an ans")])
        elif behaviour == "hang up":
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", "1000")
            self.end_headers()
            self.wfile.write(b'{"choices": [')
            self.close_connection = True
        elif behaviour == "silent":
            time.sleep(1.0)
            self.close_connection = True
        elif behaviour == "drip":
            self.stream(": still here\n\n" if time.sleep(0.05) is None else "" for _ in range(100))
        elif behaviour == "endless":
            self.stream(event("x" * 10_000) for _ in range(200))
        elif behaviour == "too long":
            self.stream([event("a long ans"), event("", "length"), "data: [DONE]\n\n"])
        elif behaviour == "withheld":
            self.stream([event("", "content_filter"), "data: [DONE]\n\n"])
        elif behaviour.startswith("whole:"):
            message = {"role": "assistant", "content": behaviour[6:]}
            usage = {"prompt_tokens": 100, "completion_tokens": 50}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self.whole(200, json.dumps({"choices": [choice], "usage": usage}), headers)
        else:
            thought = {"choices": [{"delta": {"role": "assistant", "reasoning_content": "hm"}, "finish_reason": None}]}
            usage = {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 50}}
            parts = [behaviour[i : i + 20] for i in range(0, len(behaviour), 20)]
            self.stream(
                [
                    f"data: {json.dumps(thought)}\n\n", *map(event, parts), event("", "stop"),
                    f"data: {json.dumps(usage)}\n\n", "data: [DONE]\n\n",
                ]
            )  # fmt: skip

    def whole(self, status, text, headers):
        content = text.encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def stream(self, events):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("connection", "close")
        self.end_headers()
        for text in events:
            self.wfile.write(text.encode())
            self.wfile.flush()
        self.close_connection = True


def event(content, finish=None):
    return f"data: {json.dumps({'choices': [{'delta': {'content': content}, 'finish_reason': finish}]})}\n\n"


@pytest.fixture
def serve():
    """``serve(behave) -> Server``; all are closed in the end."""
    servers = []

    def start(behave):
        servers.append(Server(behave))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
