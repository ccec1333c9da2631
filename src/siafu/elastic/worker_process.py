"""One worker process as its pool sees it: started, asked, told to forget, ended."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from siafu.elastic.kept_blocks import KeptBlocks
from siafu.elastic.shared_block import Block, map_block, write_block
from siafu.elastic.task import Reply, Task, Usage
from siafu.elastic.worker_pipe import Message, WorkerPipe, close_all

_END_SECONDS = 60.0


class WorkerProcess:
    """A process that runs `siafu.elastic.worker`. Used by one thread, which outlives it.

    The kernel ends the worker when the very thread that started it ends.
    """

    def __init__(self, name: str, threads: int) -> None:
        self.name, self.is_ready = name, False
        self._known: set[str] = set()
        """Keys of the kept bundles that the worker has mapped."""
        ours, theirs = socket.socketpair()
        self._pipe = WorkerPipe(ours)
        arguments = [str(theirs.fileno()), str(os.getpid()), str(threads)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "siafu.elastic.worker", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ | {"OMP_NUM_THREADS": str(threads)},
                process_group=0,  # Ctrl-C is the owner's to answer
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    @property
    def process_id(self) -> int:
        """The worker's process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """False when the process has ended."""
        return self._process.poll() is None

    def wait_ready(self, seconds: float) -> None:
        """Wait until the worker takes tasks; raise EOFError or TimeoutError if it won't."""
        self._pipe.receive(seconds)
        self.is_ready = True

    def ask(self, task: Task, blocks: dict[str, Block], seconds: float) -> Reply:
        """Return the worker's reply; raise EOFError, OSError or TimeoutError if it is lost.

        `blocks` has the bundles that are `new` to the worker.
        """
        kept = {bundle.key for bundle in task.bundles if bundle.lifetime != "once"}
        message = {
            "code": task.code,
            "facts": task.facts,
            "new": [(key, block.layout) for key, block in blocks.items()],
            "keep": [key for key in blocks if key in kept],
            "known": [bundle.key for bundle in task.bundles if bundle.key not in blocks],
        }
        self._pipe.send(message, [block.descriptor for block in blocks.values()])
        answer, descriptors = self._pipe.receive(seconds)
        if answer["is_mapped"]:
            self._known |= kept
        try:
            sent_bytes = sum(block.num_bytes for block in blocks.values())
            return self._reply(task.number, answer, descriptors, sent_bytes)
        finally:
            close_all(descriptors)

    def _reply(
        self, number: int, answer: Message, descriptors: list[int], sent_bytes: int
    ) -> Reply:
        started = answer["started"]
        if "failure" in answer:
            usage = Usage(self.name, started, sent_bytes=sent_bytes)
            failure, is_final = answer["failure"], answer["is_final"]
            return Reply(number, failure=failure, is_final=is_final, usage=usage)
        tensors = map_block(descriptors[0], answer["layout"])
        received_bytes = sum(tensor.nbytes for tensor in tensors.values())
        usage = Usage(self.name, started, answer["seconds"], sent_bytes, received_bytes)
        return Reply(number, tensors, usage=usage)

    @contextmanager
    def new_blocks(self, task: Task, kept: KeptBlocks) -> Iterator[dict[str, Block]]:
        """Give the blocks, by bundle key, that the worker needs for a task and has not yet.

        Those for this task alone are gone afterwards.
        """
        once: dict[str, Block] = {}
        outliving: dict[str, Block] = {}
        try:
            for bundle in task.bundles:
                if bundle.lifetime == "once":
                    once[bundle.key] = write_block(bundle.tensors)
                elif bundle.key not in self._known:
                    outliving[bundle.key] = kept.block(bundle)
            yield once | outliving
        finally:
            for block in once.values():
                block.close()

    def forget(self, key: str) -> None:
        """Have the worker let go of a bundle; raise OSError if the worker is gone."""
        if key in self._known:
            self._known.discard(key)
            self._pipe.send({"forget": key})

    def kill(self) -> None:
        """Kill the process; safe from any thread. A worker has nothing to finish or to tidy up."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process, wait for it and close the pipe."""
        self._process.kill()
        self._pipe.close()
        # One that the kernel holds back can't be helped; `close` of the pool tells of it.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
