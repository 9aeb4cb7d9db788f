"""Indexing on a cluster of Dask: the gallery of one process, whichever workers are killed."""

import logging
import os
import random
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from shutil import which
from threading import Event
from types import SimpleNamespace

import pytest
import torch
import yaml
from typer.testing import CliRunner

from scalar_retrieval.gallery.decoding import Limits
from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.search.__main__ import app
from scalar_retrieval.search.reading import Job, Reader
from scalar_retrieval.search.setup import Setup
from tests.media_corpus import cut, media
from tests.search.further import index_with

dask, distributed = pytest.importorskip("dask"), pytest.importorskip("distributed")
from scalar_retrieval.search.distributed import Cluster  # noqa: E402

NUM_CLIPS = 30
SECONDS_BETWEEN_KILLS = 2
SMALL = {"size": (32, 32), "rate": 10}


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Clips with picture, sound, subtitles or some of them; a long one, a broken one, and one that is not there."""
    folder = tmp_path_factory.mktemp("videos")
    for number in range(NUM_CLIPS):
        sound = "aac" if number % 3 else ""
        content = media("mp4", "libx264", sound, frames=1 + number % 7, seconds=0.5, **SMALL)
        (folder / f"{number:02d}.mp4").write_bytes(content)
        if number % 5 == 0:
            (folder / f"{number:02d}.srt").write_text(f"1\n00:00:00,000 --> 00:00:01,000\na dog {number}\n")
    (folder / "long.mp4").write_bytes(media("mp4", "libx264", "aac", frames=100, seconds=10, **SMALL))
    (folder / "07 broken.mp4").write_bytes(cut(content, 0.4))
    (folder / "21 gone.mp4").symlink_to(folder / "nowhere.mp4")
    return folder


def start_cluster(num_workers, **options):
    """Workers, each a process with a single thread, that listen on this machine alone."""
    options |= {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "worker_dashboard_address": None}
    # By default a cluster on one machine gives up a worker that takes longer to restart.
    dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"})
    return distributed.LocalCluster(n_workers=num_workers, threads_per_worker=1, silence_logs=50, **options)


@pytest.fixture(scope="module")
def cluster():
    # As for machines that are often taken away: the same batch may be hit again and again.
    with dask.config.set({"distributed.scheduler.allowed-failures": 100}), start_cluster(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def index(videos, tiny_model_dir):
    """Runs `scalar index`, here with a single thread, as Dask's workers have."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)

    def run(output, *options, folder=videos, code=0):
        arguments = ["index", folder, "--model", tiny_model_dir, "--output", output, *options]
        result = CliRunner().invoke(app, list(map(str, arguments)))
        assert result.exit_code == code, result.output
        return result

    with pytest.MonkeyPatch.context() as monkeypatch:
        index_with(monkeypatch, dtype="float32", batch_size=4)
        yield run
    torch.set_num_threads(before)


@pytest.fixture(
    scope="module", params=[(), pytest.param(("--segment", "2"), marks=pytest.mark.slow)], ids=["files", "windows"]
)
def alone(request, index, tmp_path_factory):
    """What one process makes of it, and the options that it was given."""
    output = tmp_path_factory.mktemp("alone") / "gallery"
    return output, request.param, index(output, *request.param)


def assert_same(folder, other):
    """The same clips, stills, and records of files."""
    ours, theirs = Gallery.open(folder), Gallery.open(other)
    assert ours.clips.to_pylist() == theirs.clips.to_pylist() and len(ours) > NUM_CLIPS
    assert ours.files == theirs.files
    stills, others = ({path.name: path.read_bytes() for path in Path(of).glob("stills/*")} for of in (folder, other))
    assert stills == others and len(stills) > 10


def kill_workers(cluster, kills, is_done):
    """Kill so many workers, each at a random moment after the one before; Dask replaces them. Ends early once the run
    is done."""
    dice = random.Random(1)
    while kills and not is_done.wait(dice.uniform(0, SECONDS_BETWEEN_KILLS)):
        # One that is killed while it starts would not be replaced.
        processes = [nanny.process for nanny in list(cluster.workers.values()) if nanny.process is not None]
        running = [process.pid for process in processes if process.status.name == "running" and process.pid]
        if running:
            with suppress(ProcessLookupError):
                os.kill(dice.choice(running), signal.SIGKILL)
                kills -= 1
    return kills


@pytest.mark.e2e
@pytest.mark.promise("data", "A cluster writes the same gallery as one process, even if a worker is killed")
def test_a_cluster_whose_workers_are_killed_makes_the_gallery_of_one_process(index, alone, cluster, tmp_path):
    whole, options, outcome = alone
    asked, is_done = (tmp_path / "gallery", "--cluster", cluster.scheduler_address, *options), Event()
    with ThreadPoolExecutor() as threads:
        killer = threads.submit(kill_workers, cluster, 3, is_done)
        try:
            index(*asked)
        finally:
            is_done.set()
    assert killer.result() < 3, "no worker was killed"
    assert_same(tmp_path / "gallery", whole)
    assert index(*asked).stdout.startswith("0 new, 0 changed, 31 unchanged, 2 unreadable")
    assert "2 unreadable" in outcome.stdout


class Deadly(distributed.WorkerPlugin):
    """Kills each worker that reads a file of this name, as a bug or a lack of memory would."""

    def setup(self, worker):
        read = Reader.__call__

        def read_or_die(reader, job):
            if "deadly" in job.path:
                os.kill(os.getpid(), signal.SIGKILL)
            return read(reader, job)

        Reader.__call__ = read_or_die


@pytest.mark.slow
@pytest.mark.promise("files", "On a cluster, a file that kills every worker is named and loses no other clip")
def test_a_file_that_kills_every_worker_is_reported_and_costs_no_other_clip(index, tmp_path):
    folder = tmp_path / "clips"
    folder.mkdir()
    for name in ("a.mp4", "deadly.mp4", "e.mp4", "f.mp4", "g.mp4"):
        (folder / name).write_bytes(media("mp4", "libx264", frames=3, **SMALL))
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), start_cluster(1) as cluster:
        with distributed.Client(cluster) as client:
            client.register_plugin(Deadly())
            options = ("--cluster", cluster.scheduler_address)
            result = index(tmp_path / "gallery", *options, folder=folder)
            assert result.stdout.startswith("4 new, 0 changed, 0 unchanged, 1 unreadable; 4 clips")
            assert f"{folder / 'deadly.mp4'}: every worker that read it was killed" in result.stdout
            assert "not tried again" in index(tmp_path / "gallery", *options, folder=folder).stdout


def test_what_stops_a_run_on_a_cluster_is_reported(index, cluster, tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("scalar_retrieval.search.distributed._PATIENCE", 0.5)
    unused = "tcp://127.0.0.1:1"
    assert f"No Dask scheduler answers at {unused}" in index(tmp_path / "a", "--cluster", unused, code=1).stderr
    with start_cluster(0) as empty:
        refused = index(tmp_path / "a", "--cluster", empty.scheduler_address, code=1).stderr
        assert "has no workers that can take a batch" in refused
    assert not (tmp_path / "a").exists()

    # A folder that only this process finds, and a model with other weights.
    monkeypatch.chdir(tiny_model_dir.parent)
    setup, job = setup_of(tmp_path, tiny_model_dir.name), job_of(tmp_path / "clip.mp4")
    with Cluster(cluster.scheduler_address) as connected:
        with pytest.raises(ValueError, match=f"The worker tcp://127.0.0.1:.* cannot load the model {setup.model}: "):
            list(connected.embed(setup, [job], 1))
        others = "scalar_retrieval.search.distributed.identify"
        monkeypatch.setattr(others, lambda _: SimpleNamespace(fingerprint="0" * 64))
        with pytest.raises(ValueError, match="it has other files of this model"):
            list(connected.embed(setup_of(tmp_path, tiny_model_dir), [job], 1))


def setup_of(folder, model):
    return Setup(folder / "gallery", str(model), None, None, None, False, Limits(), {})


def job_of(path):
    return Job(str(path), None, {}, {}, None, "key")


def test_a_scheduler_that_ends_is_reported_in_one_sentence_alone(tiny_model_dir, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("scalar_retrieval.search.distributed._PATIENCE", 5)
    loggers = ("distributed.client", "tornado.application")
    for name in loggers:
        monkeypatch.setattr(logging.getLogger(name), "handlers", [caplog.handler])
    cluster = start_cluster(1)
    with Cluster(cluster.scheduler_address) as connected:
        connected._client._timeout = 0.2  # seconds in which it connects again

        def jobs():
            yield job_of(tmp_path / "a.mp4")
            cluster.close()
            while connected._client.status != "closed":
                time.sleep(0.01)
            yield job_of(tmp_path / "b.mp4")

        with pytest.raises(ValueError, match="scheduler at tcp://127.0.0.1:[0-9]+ has ended. What was embedded"):
            list(connected.embed(setup_of(tmp_path, tiny_model_dir), jobs(), 1))
    assert not [record for record in caplog.records if record.name in loggers]


# TLS -----------------------------------------------------------------------------------------------------------------


def certificate(folder):
    """Make a certificate in a folder, as docs/scale.md shows; the settings of Dask that it shows."""
    page = (Path(__file__).parents[2] / "docs/scale.md").read_text()
    folder.mkdir()
    (command,) = re.findall("^ {4}(openssl .*)$", page, re.MULTILINE)
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    (shown,) = re.findall("```yaml\n(.*?)```", page, re.DOTALL)
    shown = yaml.safe_load(shown.replace("/etc/dask", str(folder)))
    return {"distributed.comm": dask.config.merge(dask.config.get("distributed.comm"), shown["distributed"]["comm"])}


@pytest.mark.e2e
@pytest.mark.skipif(which("openssl") is None, reason="openssl is not installed")
def test_a_cluster_with_tls_indexes_for_whoever_has_its_certificate_and_refuses_others_in_one_sentence(
    index, tmp_path, monkeypatch
):
    own, other = (certificate(tmp_path / name) for name in ("own", "other"))
    folder, gallery = tmp_path / "clips", tmp_path / "gallery"
    folder.mkdir()
    (folder / "a.mp4").write_bytes(media("mp4", "libx264", frames=3, **SMALL))

    def start(num_workers):
        with dask.config.set(own):
            return start_cluster(num_workers, protocol="tls://", security=distributed.Security())

    with start(0) as cluster, monkeypatch.context() as patched:
        patched.setattr("scalar_retrieval.search.distributed._PATIENCE", 0.5)
        address = cluster.scheduler_address
        for settings in ({}, other):
            with dask.config.set(settings):
                error = index(gallery, "--cluster", address, code=1).stderr
            assert error.startswith(f"Error: No Dask scheduler answers at {address}: ") and error.count("\n") == 1
            assert "begins with tls://, and Dask's settings `distributed.comm.tls` name the certificates" in error
        with dask.config.set(own):
            plain = address.replace("tls://", "tcp://")
            assert "encryption required" in index(gallery, "--cluster", plain, code=1).stderr
    assert not gallery.exists()
    with start(1) as cluster, dask.config.set(own):
        result = index(gallery, "--cluster", cluster.scheduler_address, folder=folder)
    assert result.stdout.startswith("1 new, 0 changed, 0 unchanged")
