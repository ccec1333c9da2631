"""A service on loopback that speaks Lambda's protocol to AWS's client and answers as told."""

import base64
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

from siafu.elastic.aws_lambda.handler import handler
from siafu.elastic.aws_lambda.pool import LambdaPool, open_client
from siafu.elastic.task import Reply

_one_at_a_time = threading.Lock()


@dataclass
class Answer:
    """What the service says to one call."""

    payload: bytes = b"null"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


def run_function(event: dict[str, Any]) -> Answer:
    """Run siafu's function here; like an instance in Lambda it does one call at a time."""
    with _one_at_a_time:
        return Answer(json.dumps(handler(event, None)).encode())


def billed(answer: Answer, *, milliseconds: int, memory_mb: int) -> Answer:
    """Return an answer with the end of a log as Lambda writes it."""
    log = (
        "END RequestId: 1\nREPORT RequestId: 1\tDuration: 101.23 ms\t"
        f"Billed Duration: {milliseconds} ms\tMemory Size: {memory_mb} MB\tMax Memory Used: 99 MB\n"
    )
    answer.headers["X-Amz-Log-Result"] = base64.b64encode(log.encode()).decode()
    return answer


class Server(ThreadingHTTPServer):
    """Waits for its calls to end when it is closed; callers that have left are no fault."""

    daemon_threads = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a caller that has left."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def service(act: Callable[[dict[str, Any]], Answer]) -> Iterator[tuple[str, list[str]]]:
    """Yield the service's address and the paths it is asked for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            paths.append(self.path)
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = act(event)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.payload)))
            self.end_headers()
            self.wfile.write(answer.payload)

        def log_message(self, *_: Any) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def pool_at(
    url: str, *, deadline_seconds: float = 20.0, **settings: Any
) -> Iterator[tuple[LambdaPool, "Queue[Reply]"]]:
    """Yield a pool whose functions are called at an address, and what it delivers."""
    replies: Queue[Reply] = Queue()
    client = open_client(region="eu-west-1", endpoint_url=url, deadline_seconds=deadline_seconds)
    chosen = {"function": "siafu", "workers": 1, **settings}
    pool = LambdaPool(replies.put, client=client, deadline_seconds=deadline_seconds, **chosen)
    try:
        yield pool, replies
    finally:
        pool.close()
