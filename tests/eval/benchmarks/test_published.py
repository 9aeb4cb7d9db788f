"""Benchmarks whose annotations have formats of their own: made rows, in the files and fields that are published."""

import json

import pytest

from scalar_retrieval.eval.benchmarks.clip_rows import query_kinds
from scalar_retrieval.eval.benchmarks.registry import find_benchmark, load_split

AVCAPS = {
    "10001": {
        "audio_captions": ["A boy laughs.", "Two people talk."],
        "visual_captions": ["A baby crawls.", ""],
        "audio_visual_captions": ["A baby crawls and laughs."],
        "GPT_AV_captions": ["A baby is crawling while laughing."],
    },
    "10002": {"audio_captions": ["Rain falls."], "visual_captions": [], "audio_visual_captions": ["It rains."]},
}
VALOR = [
    {"video_id": "CEfOX4fYlsY_20.000_30.000", "desc": "A bird leaps over the fence and sings."},
    {"video_id": "26OpBUZbdPw_18.000_28.000", "desc": "A girl sings a song."},
]
CLOTHO = """file_name,caption_1,caption_2,caption_3,caption_4,caption_5
Santa Motor.wav,A motor whines.,Somebody trims a bush.,"A saw, or a drill.",A pump.,A motor.
01 rain.2 (1).wav,Rain.,Rain falls.,It rains.,Drops fall.,A shower.
"""
MSVD = """# Descriptions of short videos.
#
-4wsuPCjDBc_5_15 a squirrel is eating a peanut in it's shell
-4wsuPCjDBc_5_15 a chipmunk is eating
-7KMZQEsJW4_205_208 a woman spins

zzit5b_-ukg_5_20 a man sings
"""
YOUCOOK2 = {
    "database": {
        "xHr8X2Wpmno": {
            "duration": 206.86,
            "subset": "validation",
            "recipe_type": "101",
            "annotations": [
                {"segment": [47, 60], "id": 0, "sentence": "pick the ends off"},
                {"segment": [67, 89], "id": 1, "sentence": "combine lemon juice and oil"},
            ],
            "video_url": "https://www.youtube.com/watch?v=xHr8X2Wpmno",
        },
        "GLd3aX16zBg": {
            "subset": "training",
            "annotations": [{"segment": [90, 102], "id": 0, "sentence": "spread margarine on bread"}],
        },
    }
}
FILES = {
    "avcaps": {"test_captions.json": json.dumps(AVCAPS)},
    "valor32k": {"desc_test.json": json.dumps(VALOR)},
    "clotho": {"clotho_captions_evaluation.csv": CLOTHO},
    "msvd": {"AllVideoDescriptions.txt": MSVD, "test_list.txt": "-4wsuPCjDBc_5_15\nzzit5b_-ukg_5_20\n"},
    "youcook2": {"youcookii_annotations_trainval.json": json.dumps(YOUCOOK2)},
}
MEDIA = {
    "avcaps": ["videos/10001.mp4", "videos/10002.mp4"],
    "valor32k": [f"videos/{row['video_id']}.mp4" for row in VALOR],
    "clotho": ["audios/Santa Motor.wav", "audios/01 rain.2 (1).wav"],
    "msvd": ["videos/-4wsuPCjDBc_5_15.avi", "videos/zzit5b_-ukg_5_20.avi"],
    "youcook2": ["videos/xHr8X2Wpmno_0.mp4", "videos/xHr8X2Wpmno_1.mkv", "videos/GLd3aX16zBg_0.mp4"],
}
ROWS = {  # clips and the captions that count
    "avcaps": {
        "10001": ["A boy laughs.", "Two people talk.", "A baby crawls.", "A baby crawls and laughs."],
        "10002": ["Rain falls.", "It rains."],
    },
    "valor32k": {row["video_id"]: [row["desc"]] for row in VALOR},
    "clotho": {
        "Santa Motor": ["A motor whines.", "Somebody trims a bush.", "A saw, or a drill.", "A pump.", "A motor."],
        "01 rain.2 (1)": ["Rain.", "Rain falls.", "It rains.", "Drops fall.", "A shower."],
    },
    "msvd": {
        "-4wsuPCjDBc_5_15": ["a squirrel is eating a peanut in it's shell", "a chipmunk is eating"],
        "zzit5b_-ukg_5_20": ["a man sings"],
    },
    "youcook2": {"xHr8X2Wpmno_0": ["pick the ends off"], "xHr8X2Wpmno_1": ["combine lemon juice and oil"]},
}


@pytest.fixture
def make(tmp_path):
    """Make the folder of a benchmark, its annotation replaced where one is given."""

    def folder(name, *contents):
        for file, content in zip(FILES[name], contents or FILES[name].values(), strict=False):
            (tmp_path / file).write_text(content)
        for file in MEDIA[name]:
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).touch()
        return tmp_path

    return folder


@pytest.mark.parametrize("name", FILES)
def test_every_caption_of_the_published_format_is_a_row_of_its_clip(make, name):
    root = make(name)
    loaded = load_split(name, root)
    found = {}
    for row in loaded.dataset:
        found.setdefault(row["video_id"], []).append(row["caption"])
    assert found == ROWS[name] and loaded.left_out == [] and loaded.task == "retrieval"
    files = {row["video_path"] or row["audio_path"] for row in loaded.dataset}
    assert files == {str(root / file) for file in MEDIA[name] if "GLd3aX16zBg" not in file}
    assert {row["video_path"] for row in loaded.dataset} == ({None} if name == "clotho" else files)
    assert find_benchmark(name).splits[-1] == "test"


def test_the_kinds_of_avcaps_are_what_its_people_had(make):
    root = make("avcaps")
    split = load_split("avcaps", root)
    kinds = ["audio", "audio", "video", "video and audio", "audio", "video and audio"]
    assert split.dataset["kind"][:] == kinds and list(query_kinds(split.dataset)["kinds"].values()) == kinds


def test_the_training_videos_of_youcook2_are_its_training_split(make):
    assert load_split("youcook2", make("youcook2"), "train").dataset["video_id"][:] == ["GLd3aX16zBg_0"]


WRONG = [
    ("avcaps", "[]", "must be AVCaps' own JSON, .*, got list"),
    ("avcaps", '{"1": {"audio_captions": ["a", 2]}}', "The clip '1' of .* must have captions as AVCaps' own"),
    ("clotho", "file_name,caption_1\na.wav,rain\n", "Row 1 of .* must be one of Clotho's own CSV .*caption_5"),
    ("msvd", "-4wsuPCjDBc_5_15\n", "must be a clip's id and a caption, got '-4wsuPCjDBc_5_15'"),
    ("youcook2", '{"database": {"a": {"subset": "validation"}}}', "its `subset` and `annotations` .*'annotations'"),
]


@pytest.mark.parametrize(("name", "content", "message"), WRONG)
def test_an_annotation_of_another_format_is_refused(make, name, content, message):
    make(name)
    with pytest.raises(ValueError, match=message):
        load_split(name, make(name, content))
