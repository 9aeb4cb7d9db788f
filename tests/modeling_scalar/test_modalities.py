"""What is known without torch, which takes a second to load."""

import subprocess
import sys

import torch

from scalar_retrieval import Gallery
from scalar_retrieval.gallery.gallery import GalleryWriter
from scalar_retrieval.modeling_scalar.configuration_joint_scalar import ScalarJointConfig
from scalar_retrieval.modeling_scalar.configuration_scalar import ScalarConfig
from scalar_retrieval.modeling_scalar.model_identity import identify
from tests.dual_encoders import write_clap, write_clip


def test_a_gallery_of_encoders_side_by_side_is_opened_and_its_model_identified_without_torch(tmp_path):
    """So that indexing begins at once where nothing is new."""
    encoders = f"{write_clip(tmp_path / 'clip')}+{write_clap(tmp_path / 'clap')}"
    columns = {"video": torch.eye(8)[:1], "audio": torch.eye(4)[:1]}
    Gallery.from_arrays(["a"], columns, path=tmp_path / "gallery")
    with GalleryWriter(tmp_path / "gallery") as writer:
        writer.metadata |= {"score_options": {"modality_scale": [1.0, 2.0], "modality_offset": [0.0, 0.5]}}
        writer.commit()
    code = f"""
import sys
from scalar_retrieval import Gallery
from scalar_retrieval.gallery.gallery import GalleryWriter
from scalar_retrieval.modeling_scalar.model_identity import identify
identity = identify({encoders!r})
print(identity.fingerprint, identity.modalities)
gallery = Gallery.open({str(tmp_path / "gallery")!r})
print(gallery.slices, gallery.metadata["score_options"]["modality_scale"])
print({{"torch", "transformers"}} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"{identify(encoders).fingerprint} ('video', 'audio')",
        "[[0, 8], [8, 12]] [1.0, 2.0]",
        "set()",
    ]


def test_models_of_this_package_are_known_by_their_configuration(tmp_path):
    for number, config in enumerate([ScalarConfig(), ScalarJointConfig()]):
        config.save_pretrained(tmp_path / str(number))
        identity = identify(tmp_path / str(number))
        assert (identity.kind, identity.is_joint) == ("model", bool(number))
