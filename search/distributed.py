"""Indexing on a cluster of Dask: its workers read and embed batches, and this process writes.

A batch of a worker that is killed is done again by another one. Batches and their order are those of one process, so
with the same hardware and number of threads the gallery is the same, to the bit.

Dask unpickles what workers send, so whoever runs a worker can run code here. TLS is set up in Dask's own settings.
"""

import gc
import logging
import time
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from threading import Lock
from typing import Any

from distributed import Client, Future, KilledWorker, get_worker, wait
from distributed.client import ClosedClientError

from scalar_retrieval.gallery.decoding import tolerant
from scalar_retrieval.gallery.embedding import Embedded, embed_clips, in_batches, read_batches
from scalar_retrieval.modeling_scalar.model_identity import default_device, identify

from .reading import Findings, Job, Reader, record_of
from .setup import Loaded, Setup, load

_PATIENCE = 30.0  # seconds to wait for a scheduler and its first worker
_REPLACED = 300.0  # seconds to wait for another worker when all are gone
_GPU = "GPU"  # the resource that workers with a GPU may declare
_NUM_READERS = 2  # clips of a batch that are read at a time
_KILLED = "every worker that read it was killed or ran out of memory"


# On a worker ---------------------------------------------------------------------------------------------------------


_tools: list[tuple[Setup, Loaded, Reader]] = []  # that this worker loaded last, and for what
_loading = Lock()
_computing = Lock()  # one batch at a time is prepared and embedded, while others are read


def _tools_for(setup: Setup, fingerprint: str) -> tuple[Loaded, Reader]:
    """Load what a setup names, and what reads for it, unless that was loaded before."""
    with _loading:
        for known, loaded, reader in _tools:
            if known == setup:
                return loaded, reader
        _tools.clear()
        try:
            found = identify(setup.model).fingerprint
            if found != fingerprint:
                raise ValueError(f"it has other files of this model (fingerprint {found}, expected {fingerprint})")
            loaded = load(setup, default_device())
        except (OSError, ValueError, ImportError) as error:
            address = get_worker().address
            raise ValueError(f"The worker {address} cannot load the model {setup.model}: {error}") from error
        # Transcripts are written into the folder of the gallery, which workers share.
        reader = Reader(tolerant(loaded.processor), setup.gallery, loaded.recognizer, loaded.line_reader)
        _tools.append((setup, loaded, reader))
        return loaded, reader


def _embed(setup: Setup, fingerprint: str, jobs: Sequence[Job]) -> Embedded:
    """Read and embed a batch: the task of a worker."""
    loaded, reader = _tools_for(setup, fingerprint)

    def prepare(clips: list) -> object:
        with _computing:  # threads must not share a tokenizer
            return loaded.processor(clips=clips)

    (batch,) = read_batches(prepare, jobs, reader, len(jobs), _NUM_READERS)
    embeds = None
    if batch.embeddable:
        with _computing:
            embeds = embed_clips(loaded.model, batch.features)
    return Embedded(batch.notes, batch.embeddable, embeds)


# In the process that writes ------------------------------------------------------------------------------------------


class Cluster:
    """
    Workers of Dask that read and embed files for an [`~scalar_retrieval.search.indexing.Indexer`].

    They must see the files, the model and the gallery's folder under the same paths, and have this package installed.
    If workers declare the resource `GPU`, batches go to these alone, and each takes one of it.

    Args:
        address (`str`): the address of the scheduler, such as `tcp://10.0.0.5:8786`; for `tls://`,
            certificates are those of Dask's settings `distributed.comm.tls`.

    Raises:
        ValueError: no scheduler answers, or it has no workers.
    """

    def __init__(self, address: str):
        self.address = address
        self._resources = None
        # That a scheduler has ended is reported once, by this class, not by tracebacks of its connections.
        for name in ("distributed", "distributed.client", "tornado.application"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        # A client that failed before this one, collected while this one starts, would wait for it forever.
        gc.collect()
        try:
            self._client = Client(address, timeout=_PATIENCE)
        except (OSError, RuntimeError, TypeError, ValueError) as error:  # Dask has no common class for wrong settings
            raise ValueError(
                f"No Dask scheduler answers at {address}: {str(error) or type(error).__name__}. If it uses TLS, the "
                "address begins with tls://, and Dask's settings `distributed.comm.tls` name the certificates."
            ) from error
        try:
            self._wait_for_worker(_PATIENCE)
        except ValueError:
            self._client.close()
            raise
        # Where some workers have a GPU, only these take batches.
        if any(_GPU in worker["resources"] for worker in self._workers()):
            self._resources = {_GPU: 1}

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.close()

    def _workers(self) -> list[dict[str, Any]]:
        """The workers that can take a batch."""
        # A client that was closed, because its scheduler has ended, knows nothing of it.
        try:
            workers = self._client.scheduler_info()["workers"].values()
        except (KeyError, OSError) as error:
            raise self._ended() from error
        if self._resources is None:
            return list(workers)
        return [worker for worker in workers if _GPU in worker["resources"]]

    def _ended(self) -> ValueError:
        return ValueError(
            f"The Dask scheduler at {self.address} has ended. What was embedded before is saved: run the same command "
            "again to continue."
        )

    def _wait_for_worker(self, seconds: float) -> None:
        """Wait until there is a worker; a ValueError if none comes."""
        # Workers come and go, so ask again and again.
        patience = time.monotonic() + seconds
        while not self._workers():
            if time.monotonic() > patience:
                raise ValueError(
                    f"The Dask scheduler at {self.address} has no workers that can take a batch, and none came in "
                    f"{seconds:g} seconds. Start one with `dask worker {self.address}`."
                )
            time.sleep(0.1)

    def embed(self, setup: Setup, jobs: Iterable[Job], batch_size: int) -> Generator[Embedded, None, None]:
        """
        Read and embed files in batches, in order.

        Args:
            setup ([`~scalar_retrieval.search.setup.Setup`]): how.
            jobs (iterable of [`~scalar_retrieval.search.reading.Job`]): what to read; consumed lazily.
            batch_size (`int`): jobs per batch.

        Raises:
            ValueError: a worker cannot load the model, no workers are left, or the scheduler has ended.
        """
        # Workers compare the files of their model with those of this process.
        fingerprint = identify(setup.model).fingerprint
        running: deque[tuple[list[Job], Future]] = deque()

        def submit(batch: list[Job]) -> Future:
            # Not `pure`, so that a batch that is submitted again is read again.
            return self._client.submit(_embed, setup, fingerprint, batch, resources=self._resources, pure=False)

        def first_result() -> Embedded:
            batch, future = running.popleft()
            try:
                return self._result(future)
            except KilledWorker:
                # Perhaps because of another batch on the same workers: it is tried again when no other one runs.
                self._wait([other for _, other in running])
                return alone(batch)

        def alone(batch: list[Job]) -> Embedded:
            try:
                return self._result(submit(batch))
            except KilledWorker:
                if len(batch) > 1:
                    return Embedded.joined([alone([job]) for job in batch])
            # The file was read alone, so it is the one that ends workers.
            file, is_lost = record_of(batch[0].path, batch[0].subtitle)
            return Embedded(
                [Findings(file, window=batch[0].window, reason=file.reason or _KILLED, is_lost=is_lost)], [], None
            )

        try:
            for batch in in_batches(jobs, batch_size):
                running.append((batch, submit(batch)))
                # Twice as many as can run at once, so that no worker waits for this process.
                if len(running) > 2 * sum(worker["nthreads"] for worker in self._workers()):
                    yield first_result()
            while running:
                yield first_result()
        except ClosedClientError as error:
            raise self._ended() from error
        finally:
            with suppress(ClosedClientError, OSError):
                self._client.cancel([future for _, future in running])

    def _wait(self, futures: Sequence[Future]) -> None:
        """Wait until tasks have ended, well or badly."""
        while futures:
            try:
                wait(futures, timeout=_PATIENCE)
                return
            except TimeoutError:
                self._wait_for_worker(_REPLACED)

    def _result(self, future: Future) -> Embedded:
        try:
            self._wait([future])
            return future.result()
        except CancelledError as error:
            raise self._ended() from error


__all__ = ["Cluster"]
