"""Scales of a direct sum, which `index` measures over the gallery's own texts."""

import pytest
import torch

from scalar_retrieval import index
from scalar_retrieval.gallery.scales import fit_scales, own_texts
from scalar_retrieval.modeling_scalar import ScalarModel, ScalarProcessor
from tests.joint_encoders import write_joint_encoder
from tests.media_corpus import tone, wav
from tests.search.small_folder import run

pytestmark = pytest.mark.usefixtures("loaded_once")

TITLES = [f"the sound number {number}" for number in range(31)]


@pytest.fixture(scope="module")
def direct_sum(tmp_path_factory):
    """Two modalities, each of which has a slice of the query: here all of it, as one encoder embeds both."""
    folder = tmp_path_factory.mktemp("scales")
    encoder = write_joint_encoder(folder / "encoder")
    modalities = ("audio", "title")
    config = {"modalities": modalities, "modality_slices": [[0, 24], [0, 24]]}
    ScalarModel.from_joint_encoder(encoder, **config).save_pretrained(folder / "model")
    ScalarProcessor.from_joint_encoder(encoder, modalities=modalities).save_pretrained(folder / "model")
    return folder / "model"


def write_list(folder, titles):
    """Sounds of a tenth of a second, and a list of them with their titles."""
    lines = ["path,title"]
    for number, title in enumerate(titles):
        (folder / f"{number}.wav").write_bytes(wav(tone(1600, 900 + 20 * number)))
        lines.append(f"{number}.wav,{title}")
    (folder / "list.csv").write_text("\n".join(lines) + "\n")


def fitted(gallery):
    """The scales by their definition, over own texts, each without the clips of its files."""
    texts = own_texts(gallery)
    queries = gallery.load_model().embed(list(texts))
    embeds = gallery.modality_embeds().float()
    mask = gallery.modality_mask.expand(len(texts), -1, -1).clone()
    for row, paths in enumerate(texts.values()):
        for path in paths:
            mask[row, gallery.row_of(path)] = False
    return fit_scales(torch.einsum("qd,vmd->qvm", queries, embeds), mask)


def test_the_first_index_with_enough_texts_fits_scales_and_later_ones_keep_them(
    direct_sum, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0.srt").write_text(
        "1\n00:00:00,000 --> 00:00:00,050\nno\n\n2\n00:00:00,050 --> 00:00:01,000\nyes, yes\n"
    )
    write_list(tmp_path, TITLES[:28])
    with pytest.warns(UserWarning, match="29 different titles and subtitles and 28 clips are too few"):
        gallery = index("list.csv", "gallery", direct_sum, text="title", progress=False)
    assert gallery.calibration == {} and "scales" not in gallery.metadata

    # One more title, which two files have
    write_list(tmp_path, [*TITLES[:29], TITLES[28]])
    gallery = index("list.csv", "gallery")
    line = "scales from 30 titles and subtitles"
    assert f"{line}\n" in capsys.readouterr().err and f"{line}\n" in run("info", "gallery")
    expected = {title: {str(tmp_path / f"{number}.wav")} for number, title in enumerate(TITLES[:29])}
    expected[TITLES[28]].add(str(tmp_path / "29.wav"))
    assert own_texts(gallery) == expected | {"yes, yes": {str(tmp_path / "0.wav")}}
    # Vectors are read in float16 here and there, and products added in another order.
    scales = fitted(gallery)
    for name in ("modality_scale", "modality_offset"):
        assert gallery.calibration[name] == pytest.approx(scales[name], rel=1e-5)

    # One more file, and the same scales
    write_list(tmp_path, TITLES)
    later = index("list.csv", "gallery")
    assert len(later) == 31 and later.calibration == gallery.calibration
