"""An archive of 2,000 real, made and broken files: none is lost in silence, and twenty kills leave no trace."""

import random
import sys
import time

import pytest

from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.search.sources import find_files
from tests.media_corpus import NOISE, cut, media, noisy

NUM_FILES, NUM_KILLS = 2000, 20
CUE = "1\n00:00:00,000 --> 00:00:09,000\na dog barks\n"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="makes what only Linux has")]


def write_small(folder):
    """As many files of less than a second as are missing; some of them copies of others, some broken."""
    dice, tiny = random.Random(0), {"size": (32, 32), "rate": 10, "encoder": "preset=ultrafast"}
    made = []
    for frames in range(1, 17):
        for kind, *codecs in (("mp4", "libx264", "aac"), ("mp4", "libx264"), ("wav", "", "pcm_s16le")):
            made.append(media(kind, *codecs, frames=frames, seconds=0.1 * frames, **tiny))
    (folder / "small").mkdir()
    for number in range(NUM_FILES - len(find_files([folder]))):
        content, kind = dice.choice(made), dice.randrange(12)
        if kind < 2:
            content = NOISE[number : number + 3000 * kind]  # or empty
        elif kind == 2:
            content = content[: dice.randrange(len(content))]
        (folder / "small" / f"{number}.mp4").write_bytes(content)
        if kind == 3:
            (folder / "small" / f"{number}.srt").write_text(CUE)


@pytest.fixture(scope="module")
def archive(shared_dir, tmp_path_factory):
    """A folder of real clips, whole, cut and with noise, and of small ones."""
    folder = tmp_path_factory.mktemp("archive") / "archive"
    folder.mkdir()
    for path in sorted((shared_dir / "data" / "videos").glob("*.mp4")):
        clip = path.read_bytes()
        (folder / path.name).write_bytes(clip)
        for share in range(1, 20):
            (folder / f"{path.stem} cut {share}.mp4").write_bytes(cut(clip, share / 20))
            (folder / f"{path.stem} noise {share}.mp4").write_bytes(noisy(clip, share / 20, 3000))
    write_small(folder)
    return folder


@pytest.fixture(scope="module")
def index(commands, archive, tiny_model_dir):
    """Starts indexing into a gallery."""

    def start(output):
        arguments = ("--model", tiny_model_dir, "--output", output, "--segment", "none")
        return commands.start("-m", "tests.search.further", "index", archive, *arguments)

    return start


@pytest.fixture(scope="module")
def unbroken(index, tmp_path_factory):
    """The gallery of one run."""
    output = tmp_path_factory.mktemp("unbroken") / "gallery"
    outcome = index(output).wait(200)
    assert outcome.code == 0, outcome.stderr[-3000:]
    print(f"{NUM_FILES / outcome.seconds:.0f} files per second, start included")
    return output


def contents(folder):
    """The bytes of a gallery, but those that tell when it was begun."""
    names = ("gallery.json", "gallery-copy.json", "dataset_info.json")
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in names]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.promise("data", "Indexing 2,000 files through twenty kills gives the clips of an uninterrupted run")
def test_killed_twenty_times_an_archive_is_indexed_as_in_an_unbroken_run(archive, index, unbroken, tmp_path):
    folder, dice = tmp_path / "gallery", random.Random(1)

    def num_done():
        return len(Gallery.open(folder).files) if (folder / "gallery.json").is_file() else 0

    kills = [0]
    for aim in sorted(dice.sample(range(NUM_FILES - 200), NUM_KILLS)):
        running = index(folder)
        patience = time.monotonic() + 120
        while num_done() < max(aim, kills[-1] + 1):
            assert time.monotonic() < patience, running.printed("stderr")[-3000:]
            time.sleep(0.02)
        time.sleep(dice.uniform(0, 0.1))
        running.kill()
        assert running.wait(30).code == -9, "it has ended before it was killed"
        kills.append(num_done())
    assert kills == sorted(kills) and kills[-1] < NUM_FILES and len(set(kills)) > NUM_KILLS // 2, kills
    outcome = index(folder).wait(200)
    assert outcome.code == 0, outcome.stderr[-3000:]

    whole, killed = Gallery.open(unbroken), Gallery.open(folder)
    killed.verify()
    assert killed.clip_ids == whole.clip_ids and killed.files == whole.files
    assert contents(folder) == contents(unbroken)  # of all tables
    # Every file is a clip, or it is said why it is none.
    files = find_files([archive])
    assert len(files) == NUM_FILES and set(whole.files) == set(files)
    assert set(whole.clip_ids) == {path for path in files if whole.files[path].reason is None}
    assert NUM_FILES // 2 < len(whole) < NUM_FILES - NUM_FILES // 8 and len(whole.problems()) > 20
