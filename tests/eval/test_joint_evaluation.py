"""Joint encoders in evaluation: they have the calls of three towers, and some a fused vector of their own."""

import json
import shutil
from dataclasses import replace
from itertools import product

import pytest
import torch
from datasets import Dataset
from torch.nn.functional import normalize

from eval.benchmarks.definition import PROTOCOL, configure_processor
from eval.embedding.embed_dataset import embed_dataset
from eval.embedding.embed_fused import check_fuses, needed_mixes
from eval.embedding.embeddings import Embeddings
from eval.protocol.first_stage import measure_first_stage
from eval.protocol.missing import ladder_masks, mask_modalities, rate_masks
from eval.run import RunConfig, run
from gallery.described import score_options_of
from modeling_scalar import ScalarModel, load_model
from modeling_scalar.configuration_joint_scalar import ScalarJointConfig
from modeling_scalar.modeling_joint_scalar import JointEncoderModel
from tests.conftest import make_tiny_config
from tests.joint_encoders import CHAT_TEMPLATE, write_joint_encoder
from tests.media_corpus import media


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_joint_encoder(tmp_path_factory.mktemp("evaluation") / "encoder")


def test_a_protocol_sets_the_frames_and_leaves_texts_to_the_encoder(encoder):
    _, processor = load_model(encoder)
    processor.num_frames = 3
    configured = configure_processor(processor, PROTOCOL)
    assert (configured.num_frames, processor.num_frames) == (PROTOCOL["num_frames"], 3)
    assert configured.max_text_length == processor.max_text_length == 8192
    assert configured.reader is processor.reader


def test_a_data_set_is_embedded_by_a_joint_encoder(encoder, tmp_path):
    model, processor = load_model(encoder)
    processor = configure_processor(processor, {"num_frames": 2})
    path = tmp_path / "clip.mkv"
    path.write_bytes(media("matroska", "mjpeg", "pcm_s16le"))
    rows = [
        {"video_id": "a", "caption": "a dog", "video_path": str(path), "audio_path": str(path), "subtitle": "woof"},
        {"video_id": "b", "caption": "a cat", "video_path": None, "audio_path": str(path), "subtitle": None},
    ]
    embeddings = embed_dataset(model, processor, Dataset.from_list(rows), batch_size=1, progress=False)
    clips = [processor.read_clip(path, subtitle="woof"), processor.read_clip(None, audio=path)]
    with torch.no_grad():
        expected = model(**processor(text=["a dog", "a cat"], clips=clips))
    assert embeddings.modality_mask.tolist() == [[True, True, True], [False, True, False]]
    torch.testing.assert_close(embeddings.modality_embeds, expected.modality_embeds, atol=1e-6, rtol=0)
    torch.testing.assert_close(embeddings.text_embeds, expected.text_embeds, atol=1e-6, rtol=0)


# The encoder's own fused vector ------------------------------------------------------------------------------------

CLIPS = (("pcm_s16le", "a bell"), ("pcm_s16le", None), ("", "no bell"), ("", None), ("pcm_s16le", "Who?"))
CAPTIONS = [number * "ab" + "c" for number in range(5)]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """An evaluation with fused vectors: of clips with all modalities, with two and with one."""
    folder = tmp_path_factory.mktemp("fused")
    write_joint_encoder(folder / "encoder", chat_template=CHAT_TEMPLATE)
    rows = []
    for number, (audio, subtitle) in enumerate(CLIPS):
        path = folder / f"{number}.mkv"
        path.write_bytes(media("matroska", "mjpeg", audio, frames=4, seconds=0.4, size=(32 + 16 * number, 32)))
        row = {"id": f"clip{number}", "caption": CAPTIONS[number], "file": str(path), "subtitle": subtitle}
        rows.append(json.dumps(row | {"sound": str(path) if audio else None}))
    (folder / "clips.jsonl").write_text("\n".join(rows))
    config = RunConfig(
        folder / "results",
        folder / "encoder",
        "own",
        folder / "clips.jsonl",
        columns={"video_id": "id", "video_path": "file", "audio_path": "sound"},
        rates=(0.0, 0.9),
        fused=True,
        batch_size=3,
        progress=False,
    )
    return folder, config, run(config)


def test_what_the_model_fuses_is_a_method_at_every_rate(measured):
    """Against single clips, of which what is masked is taken away before they are embedded."""
    folder, _, results = measured
    model, processor = load_model(folder / "encoder")
    clips = [processor.read_clip(folder / f"{n}.mkv", subtitle=subtitle) for n, (_, subtitle) in enumerate(CLIPS)]
    presence = torch.tensor(results["gallery"]["presence"]).bool()
    with torch.no_grad():
        queries = model.get_text_features(**processor(text=CAPTIONS)).pooler_output.double()
    for entry in results["retrieval"]["rates"]:
        mask = mask_modalities(results["gallery"]["ids"], presence, entry["rate"])
        vectors = []
        for clip, left in zip(clips, mask, strict=True):
            with torch.no_grad():
                vectors.append(model.get_fused_features(**processor.fuse([clip], left[None]))[0].double())
        ranks = []
        for query in range(5):
            cosines = [float(queries[query] @ vector) for vector in vectors]
            ranks.append(sum(cosine >= cosines[query] for cosine in cosines))
        found = entry["methods"]["fused"]
        assert found["text_to_video_recall_at_1"] == pytest.approx(100 * ranks.count(1) / 5)
        assert found["text_to_video_mean_rank"] == pytest.approx(sum(ranks) / 5)
        assert found["num_unscorable_clips"] == 0 and "fused" in entry["aggregation_gain"]
    assert (presence != mask).any(), "something must be masked"


def test_the_fused_vector_stands_in_every_table_of_scores(measured):
    folder, _, results = measured
    assert "fused by the model" in (folder / "results" / "table.txt").read_text()
    assert (folder / "results" / "report" / "tables.md").read_text().count("fused by the model") >= 2
    assert [entry["baseline"] for entry in results["retrieval"]["differences"]][0] == "fused"
    ladder = {tuple(step["modalities"]): step["text_to_video_recall_at_1"] for step in results["retrieval"]["ladder"]}
    video = results["retrieval"]["rates"][0]["methods"]["video"]
    assert ladder["video",]["fused"] == video["text_to_video_recall_at_1"]  # of one modality it is that one's


def test_only_what_masks_leave_is_fused_and_each_set_once(measured):
    _, config, results = measured
    presence = torch.tensor(results["gallery"]["presence"]).bool()
    ids = results["gallery"]["ids"]

    mixes = needed_mixes([*rate_masks(ids, presence, config.rates, config.mask_seed), *ladder_masks(presence)])
    masked = mask_modalities(ids, presence, 0.9)
    for row, found in enumerate(mixes):
        possible = [tuple(map(bool, mix)) for mix in product((0, 1), repeat=3) if sum(mix) > 1]
        expected = {tuple(presence[row].tolist()), tuple(masked[row].tolist())}
        expected.add(tuple(a and b for a, b in zip(presence[row].tolist(), (True, True, False), strict=True)))
        assert set(found) == expected & set(possible) and len(found) == len(set(found))
    assert max(map(len, mixes)) > 1


def test_models_without_a_fused_vector_are_refused_before_anything_is_embedded(measured):
    class Towers(JointEncoderModel):
        """As an encoder with a tower for each modality is."""

        def encode_texts(self, inputs, **flags):
            raise AssertionError

        def encode_rows(self, name, inputs):
            raise AssertionError

    for model in (Towers(ScalarJointConfig(projection_dim=4)), ScalarModel(make_tiny_config())):
        with pytest.raises(ValueError, match="takes several modalities at once"):
            check_fuses(model)
    with pytest.raises(ValueError, match="give a model"):
        RunConfig("out", embeddings_path=measured[0] / "results" / "embeddings", fused=True)
    with pytest.raises(ValueError, match="--fused"):
        RunConfig("out", embeddings_path="e", methods=["fused"])


def test_the_fused_method_can_be_named_where_it_is_measured():
    config = RunConfig(
        "out", "encoder", "own", "clips.csv", methods=["fused"], rates=(0.0,), fused=True, progress=False
    )
    vectors, names = normalize(torch.randn(4, 4, 8, generator=torch.Generator().manual_seed(0)), dim=-1), list("abcd")
    pairs = torch.arange(4)[:, None].expand(-1, 2)
    embeddings = Embeddings(vectors[:, 0], vectors[:, 1:], torch.ones(4, 3).bool(), pairs, names, names, names)
    mixes = [mix for mix in product((False, True), repeat=3) if sum(mix) > 1]
    embeddings.fused_embeds = {(row, mix): vectors[row, 0] for row in range(4) for mix in mixes}
    embeddings = embeddings.with_fused()
    score = score_options_of(embeddings.metadata)
    measured, _ = measure_first_stage(embeddings, methods=config.methods, rates=config.rates, **score)
    methods = measured["rates"][0]["methods"]
    assert list(methods)[:2] == ["scalar", "fused"] and "gram" not in methods
    assert methods["fused"]["text_to_video_recall_at_1"] == 100


def test_vectors_of_two_models_are_not_measured_side_by_side(measured, tmp_path):
    folder, config, _ = measured
    shutil.copytree(folder / "encoder", tmp_path / "other")
    (tmp_path / "other" / "chat_template.jinja").write_text(CHAT_TEMPLATE + " ")
    given = replace(config, output=tmp_path / "out", model_path=tmp_path / "other")
    with pytest.raises(ValueError, match="Embeddings of different models cannot be compared"):
        run(replace(given, embeddings_path=config.output / "embeddings"))
