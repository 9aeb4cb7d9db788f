"""How much of the project one must hold: files behind a job, files of a thread, circles of imports.

    python -m pytest tests/test_budgets.py -rP

prints today's numbers. A budget may fall; before one rises, think again."""

import re

import pytest

from tests.imports import circle, closure, files_of

# Files that run when the modules of a job are imported.
JOBS = {
    "trainer.run": 42,
    "trainer.scalar_trainer": 38,
    "eval.source": 40,
    "search.index_folder": 44,
    "search.service.app gallery.folder_searcher": 47,
    "gallery.gallery gallery.searching gallery.folder_searcher": 38,
    "modeling_scalar.scores_scalar": 3,
}

# Files with the words of an option or an idea that travels. The words are those of the idea alone: `concatenate`, a
# refusal or the terms of a loss do not count.
THREADS = {
    "windows": (r"[Ww]indows?\b|window_", 35),
    "scales and offsets": (
        r"modality_scale|modality_offset|CALIBRATION|calibration_(?:of|hint)|\.calibration\b|calibrate\b"
        r"|(?:is|not|are) calibrated|\.calibrated\(|\(calibrated\)|[Ss]cales? (?:and|or) (?:the )?offsets?"
        r"|any calibration",
        30,
    ),
    "on_error": (r"\bon_error", 12),
    "engines": (r"\b[Ee]ngines?\b|[Qq]drant|[Pp]ostgre", 9),
    "concatenation heads": (r"concat_head|concat_embeds|concat_features|CONCAT|[Cc]oncatenation head", 11),
    "names that are not UTF-8": (r"to_utf8|from_utf8|surrogate|not UTF-8", 9),
}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_stays_within_its_files(job):
    found = closure(*job.split())
    print(f"{job}: {len(found)} files, {sum(len(path.read_text().splitlines()) for path in found)} lines")
    assert 0 < len(found) <= JOBS[job]


@pytest.mark.parametrize("thread", THREADS)
def test_a_thread_passes_through_no_more_files(thread):
    words, most = THREADS[thread]
    found = [path for path in files_of() if re.search(words, path.read_text(encoding="utf-8"))]
    print(f"{thread}: {len(found)} files")
    assert len(found) <= most


def test_no_files_import_each_other():
    assert not circle()
