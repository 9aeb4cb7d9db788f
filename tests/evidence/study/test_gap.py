"""An artificial modality gap, and that calibration is fitted to other clips than those that are measured."""

import pytest
import torch

from evidence.settings import GapConfig
from evidence.study.gap import add_gap, hits_at_1, main
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from tests.eval.slow import make_embeddings


def make(prefix: str, count: int, seed: int) -> Embeddings:
    names = [f"{prefix}{number}" for number in range(count)]
    return make_embeddings(count, 1, dim=32, seed=seed, clip_ids=names, query_ids=names)


def test_a_gap_moves_whole_modalities_and_nothing_else():
    before = make("a", 50, 0)
    after = add_gap(before, 3.0)
    present = before.modality_mask
    torch.testing.assert_close(after.modality_embeds.norm(dim=-1), present.float())
    for index in range(3):
        vectors = after.modality_embeds[present[:, index], index]
        assert (vectors @ vectors.T).min() > 0.5  # of one modality all lie in one region
    assert (after.modality_embeds[:, 0] @ after.modality_embeds[:, 1].T).abs().max() < 0.7  # of two they do not
    same = add_gap(before, 0.0)
    torch.testing.assert_close(same.modality_embeds, before.modality_embeds)
    torch.testing.assert_close(same.text_embeds, before.text_embeds)


def test_the_command_tells_the_gain_on_other_clips_than_those_that_are_fitted(tmp_path, capsys):
    for name, seed in (("a", 0), ("b", 1)):
        make(name, 60, seed).save(tmp_path / name)
    main(GapConfig(embeddings=tmp_path / "a", fitted=tmp_path / "b", sizes=(0.0, 2.0)))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["gap 0", "gap 2"]
    values = hits_at_1(make("a", 60, 0), method="scalar", query_temperature=0.1)
    assert f"R@1 {sum(values) / 60:.1f};" in lines[0]
    with pytest.raises(ValueError, match="60 clips are in both"):
        main(GapConfig(embeddings=tmp_path / "a", fitted=tmp_path / "a"))
