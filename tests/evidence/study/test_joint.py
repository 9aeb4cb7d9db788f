"""The small joint encoder that is trained from scratch: what its clips show, and that its folder is a model."""

from collections import Counter

import pytest
import torch

from evidence.fused import embed_whole
from evidence.miniature.generation import generate
from evidence.settings import JointConfig
from evidence.study.joint import draw_mixes, main
from modeling_scalar import load_model
from modeling_scalar.modeling_joint_scalar import ScalarJointModel


def test_half_of_the_draws_show_one_modality_and_the_others_any_mix_of_what_a_clip_has():
    present = torch.tensor([[True, False, True], [True, True, True], [False, True, False]])
    draws = [draw_mixes(present, torch.Generator().manual_seed(seed)) for seed in range(1400)]
    for row, (possible, num_alone) in enumerate(((3, 2), (7, 3), (1, 1))):
        counts = Counter(tuple(mix[row].tolist()) for mix in draws)
        assert len(counts) == possible and all(any(mix) for mix in counts)
        assert not any((torch.tensor(mix) & ~present[row]).any() for mix in counts)
        for mix, count in counts.items():
            share = 0.5 / possible + (0.5 / num_alone if sum(mix) == 1 else 0)
            assert count == pytest.approx(1400 * share, abs=4 * (1400 * share * (1 - share)) ** 0.5 + 1e-9)


@pytest.mark.slow
def test_what_is_trained_from_scratch_is_a_model_that_fuses(tmp_path):
    data, output = tmp_path / "data", tmp_path / "model"
    generate(data, num_train=8, num_validation=0, num_test=0, num_proc=1)
    main(JointConfig(root=data, output=output, epochs=1, batch_size=4))
    model, processor = load_model(output)
    assert isinstance(model, ScalarJointModel) and not model.training
    clips = [processor.read_clip(path) for path in sorted((data / "train").glob("*.mp4"))[:3]]
    with torch.no_grad():
        inputs = processor(clips=clips)
        fused = embed_whole(model, inputs, inputs["modality_mask"])
        alone, mask = model.get_modality_features(**inputs)
        for place, has_it in enumerate(mask.unbind(dim=1)):
            some = {name: values[has_it] for name, values in inputs.items()}
            only = torch.zeros_like(mask[has_it])
            only[:, place] = True
            torch.testing.assert_close(embed_whole(model, some, only), alone[has_it, place], atol=1e-6, rtol=0)
    torch.testing.assert_close(fused.norm(dim=1), torch.ones(3))
    several = mask.sum(dim=1) > 1
    assert several.any() and ((fused[:, None] - alone).norm(dim=-1)[several] > 1e-3).all()
