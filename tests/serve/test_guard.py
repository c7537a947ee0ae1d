"""Keys, hosts, sizes: what is refused before any route."""

import socket

import httpx2
import pytest

from parallel_r1.serve.guard import Limits, check_binding
from parallel_r1.serve.server import read_key

HTTP = httpx2.Client(timeout=60)
KEY = "a-key-of-sufficient-length"


def test_who_may_bind_where():
    assert check_binding("127.0.0.1", None) and check_binding("::1", None) and check_binding("localhost", None)
    assert not check_binding("0.0.0.0", KEY)
    for host in ("0.0.0.0", "::", "192.168.1.4", "example.org", "127.0.0.1.example.org"):
        with pytest.raises(ValueError, match="needs a key"):
            check_binding(host, None)
    for key in ("short", "with a line\nbreak in it", "ключ-из-многих-букв"):
        with pytest.raises(ValueError, match="16 characters"):
            check_binding("127.0.0.1", key)


def test_where_the_key_comes_from(tmp_path, monkeypatch):
    monkeypatch.delenv("PARALLEL_R1_API_KEY", raising=False)
    assert read_key(None) is None
    monkeypatch.setenv("PARALLEL_R1_API_KEY", KEY)
    assert read_key(None) == KEY
    (tmp_path / "key").write_text("another\n")
    assert read_key(tmp_path / "key") == "another"
    (tmp_path / "key").write_text("\n")
    with pytest.raises(ValueError, match="empty"):
        read_key(tmp_path / "key")


def test_a_key_is_asked_for(serve):
    address = serve(limits=Limits(api_key=KEY, local_only=False))
    for headers in ({}, {"Authorization": f"Bearer {KEY}x"}, {"Authorization": f"Basic {KEY}"},
                    {"Authorization": b"Bearer \xff\xfe"}):  # fmt: skip
        for path in ("/v1/models", "/metrics", "/openapi.json", "/v1//models", "/nowhere"):
            reply = HTTP.get(address + path, headers=headers)
            assert reply.status_code == 401 and reply.headers["WWW-Authenticate"] == "Bearer", path
            assert reply.json()["error"]["code"] == "invalid_api_key"
    assert HTTP.get(address + "/v1/models", headers={"Authorization": f"bearer {KEY}"}).status_code == 200
    assert {HTTP.get(address + path).status_code for path in ("/", "/health", "/playground.js")} == {200}


def test_other_names_of_this_machine_are_refused(serve):
    address = serve()
    port = address.rsplit(":", 1)[1]
    for host in (f"evil.example:{port}", "evil.example", "127.0.0.1.evil.example", "evil]", "[::2]", ""):
        assert HTTP.get(address + "/v1/models", headers={"Host": host}).status_code in (400, 403), host
    for host in (f"localhost:{port}", "LOCALHOST", f"[::1]:{port}", "[::1]", "127.0.0.1"):
        assert HTTP.get(address + "/v1/models", headers={"Host": host}).status_code == 200, host


def raw(address, data, wait=5):
    """Send bytes as they are; returns the status line."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=wait) as line:
        line.sendall(data)
        return line.recv(4096).split(b"\r\n")[0]


def test_bodies_have_a_size_and_a_time(serve):
    address = serve(limits=Limits(max_body_bytes=1000, body_seconds=0.3))
    reply = HTTP.post(address + "/v1/completions", json={"model": "dice", "prompt": "1" * 1000})
    assert reply.status_code == 413 and reply.json()["error"]["code"] == "body_too_large"
    chunked = HTTP.post(address + "/v1/completions", content=iter([b"x" * 600] * 2))
    assert chunked.status_code == 413
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert b" 408 " in raw(address, head + b"Content-Length: 50\r\n\r\n{")
    assert b" 413 " in raw(address, head + b"Content-Length: " + b"9" * 12 + b"\r\n\r\n{")
    assert b" 400 " in raw(address, b"nonsense\r\n\r\n")
    assert HTTP.get(address + "/health").status_code == 200


def test_the_page_runs_no_foreign_code(serve):
    reply = HTTP.get(serve() + "/")
    policy = reply.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "http" not in reply.text.replace("http-equiv", "") and "<script>" not in reply.text
