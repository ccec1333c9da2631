"""Functions in AWS Lambda as workers.

A function is called through AWS's own client with an invitation: where the graph server listens and
the keys for it. Tensors then travel between the two directly, over ZeroMQ. The invitation holds the
run's client key, so it is a secret: it goes to AWS over TLS and to nobody else, is never logged
here, and is worth nothing after the run.
"""

import base64
import json
import re
import threading
import time
from collections import deque
from typing import Any

import boto3
from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ReadTimeoutError

from siafu.elastic.aws_lambda.endpoint import Endpoint
from siafu.elastic.options import LOOPBACK
from siafu.elastic.pools.pool import Deliver
from siafu.elastic.runner import round_up
from siafu.elastic.task import Reply, Task
from siafu.errors import PoolError

CONNECTS_WITHIN = 10.0
ANSWER_SLACK = 5.0
"""A function that gives up at its deadline has so long to say so."""
ENDS_WITHIN = 5.0
"""Functions that still run when the pool closes are waited for so long, then left to end alone."""
MOST_CONNECTIONS = 1000
"""Calls at once by one client; AWS's usual limit for an account."""
BILLED = re.compile(r"Billed Duration: ([0-9.]+) ms")
MEMORY = re.compile(r"Memory Size: ([0-9]+) MB")


def open_client(*, region: str = "", endpoint_url: str = "", deadline_seconds: float) -> BaseClient:
    """Return AWS's client for Lambda, without retries of its own; credentials as AWS finds them."""
    settings = Config(
        retries={"total_max_attempts": 1},
        connect_timeout=CONNECTS_WITHIN,
        read_timeout=deadline_seconds + ANSWER_SLACK,
        max_pool_connections=MOST_CONNECTIONS,
        tcp_keepalive=True,
    )
    try:
        return boto3.client(
            "lambda",
            region_name=region or None,
            endpoint_url=endpoint_url or None,
            config=settings,
        )
    except (BotoCoreError, ValueError) as error:
        raise PoolError(
            "AWS's client can't be made.", seen=f"{error}", fix="set AWS_DEFAULT_REGION"
        ) from error


class LambdaPool:
    """Calls one function, `workers` times at once at most; each call runs one task.

    Kept for a bill: `requests`, `billed_seconds` (by AWS's log where it came along, else as
    measured) and `memory_gb` (0 until a call has told it).
    """

    def __init__(
        self,
        deliver: Deliver,
        *,
        function: str,
        workers: int,
        client: BaseClient,
        address: str = LOOPBACK,
        deadline_seconds: float = 60.0,
        encrypted: bool = True,
    ) -> None:
        """Listen at once; take over the client, which is closed with the pool."""
        self._deliver, self._function, self._client = deliver, function, client
        self._workers, self._deadline_seconds = workers, deadline_seconds
        self._lock = threading.Lock()
        self._waiting: deque[Task] = deque()
        self._running: set[threading.Thread] = set()
        self._is_closed = False
        self.requests, self.billed_seconds, self.memory_gb = 0, 0.0, 0.0
        self.endpoint = Endpoint(deliver, address=address, encrypted=encrypted)

    @property
    def workers(self) -> int:
        """How many tasks may run at once now; further ones wait in the pool."""
        return self._workers

    def start(self, task: Task) -> None:
        """Have the function called for a task; return at once."""
        with self._lock:
            self._waiting.append(task)
        self._launch()

    def resize(self, workers: int) -> None:
        """Aim at so many calls at once; those that run go on."""
        with self._lock:
            self._workers = workers
        self._launch()

    def forget(self, key: str) -> None:
        """Have warm functions let go of a bundle."""
        self.endpoint.forget(key)

    def close(self) -> None:
        """End the pool; nothing is delivered afterwards."""
        with self._lock:
            self._is_closed = True
            self._waiting.clear()
            running = list(self._running)
        # Functions that come now are told to end, so their calls return soon.
        self.endpoint.dismiss()
        until = time.monotonic() + ENDS_WITHIN
        for thread in running:
            thread.join(max(until - time.monotonic(), 0))
        self.endpoint.close()
        self._client.close()

    def _launch(self) -> None:
        with self._lock:
            while self._waiting and len(self._running) < self._workers and not self._is_closed:
                # A daemon: a call that hangs must not keep the process from ending.
                thread = threading.Thread(
                    target=self._run, args=(self._waiting.popleft(),), daemon=True
                )
                self._running.add(thread)
                thread.start()

    def _run(self, task: Task) -> None:
        invitation = self.endpoint.invite(task, self._deadline_seconds)
        if invitation is not None:
            try:
                failure = self._call(invitation.to_event())
            except Exception as error:  # noqa: BLE001 - told to whoever asked
                failure = f"{type(error).__name__}: {error}"
            if self.endpoint.withdraw(invitation.token):
                text = failure or "the function ended without a result"
                self._deliver(Reply(task.number, failure=f"{self._function}: {text}"))
        with self._lock:
            self._running.discard(threading.current_thread())
        self._launch()

    def _call(self, event: dict[str, Any]) -> str:
        """Call the function and wait for it; return why it failed, or nothing."""
        clock = time.perf_counter()
        try:
            answer = self._client.invoke(
                FunctionName=self._function,
                InvocationType="RequestResponse",
                LogType="Tail",
                Payload=json.dumps(event).encode(),
            )
            payload = answer["Payload"].read()
        except ClientError as error:
            return _refusal(error)
        except ReadTimeoutError as error:
            # The function may have run all the time, and AWS charges for it.
            self._bill({}, {}, time.perf_counter() - clock)
            return f"the function did not answer in time: {error}"
        except BotoCoreError as error:
            return f"the call did not come through: {error}"
        facts = _facts(payload)
        self._bill(answer, facts, time.perf_counter() - clock)
        if answer.get("FunctionError"):
            told = f"{facts.get('errorType', '')}: {facts.get('errorMessage', '')}"
            return f"the function failed ({answer['FunctionError']}): {told}"
        return str(facts.get("failure", "the answer is not one of siafu's function"))

    def _bill(self, answer: dict[str, Any], facts: dict[str, Any], seconds: float) -> None:
        log = base64.b64decode(answer.get("LogResult", "")).decode(errors="replace")
        billed, memory = BILLED.search(log), MEMORY.search(log)
        measured = facts.get("seconds")
        if billed:
            seconds = float(billed[1]) / 1000
        else:
            # Rounded up as AWS does.
            seconds = measured if isinstance(measured, int | float) else seconds
            seconds = round_up(seconds, 0.001)
        memory_mb = memory[1] if memory else facts.get("memory_mb")
        with self._lock:
            self.requests += 1
            self.billed_seconds += seconds
            if memory_mb:
                self.memory_gb = int(memory_mb) / 1024


def _facts(payload: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(payload)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _refusal(error: ClientError) -> str:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if status == 429:
        return f"throttled by AWS ({code}): fewer workers, or a higher limit for the account"
    return f"AWS refused the call ({status} {code}): {error}"
