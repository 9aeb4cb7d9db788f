"""Benchmarks by name, their settings, and what they set in a processor."""

import pytest

from scalar_retrieval.eval.benchmarks import registry
from scalar_retrieval.eval.benchmarks.definition import configure_processor
from scalar_retrieval.eval.benchmarks.registry import find_benchmark, load_split
from scalar_retrieval.modeling_scalar import ScalarProcessor


def test_a_processor_takes_the_protocol_on_and_the_given_one_stays(tiny_processor):
    before = tiny_processor.to_dict()
    configured = configure_processor(tiny_processor, find_benchmark("didemo").processing)
    assert type(configured) is ScalarProcessor and configured.tokenizer is tiny_processor.tokenizer
    assert (configured.num_frames, configured.max_text_length, configured.max_subtitle_length) == (8, 70, 70)
    assert (configured.feature_extractor.num_segments, configured.image_processor.resize_mode) == (2, "squash")
    assert tiny_processor.to_dict() == before != configured.to_dict()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("kinetics", {}, "`name` must be one of .*'msrvtt'.*, got 'kinetics'"),
        ("vggsound", {"captions": "first"}, r"vggsound has the settings \[\], not \['captions'\]"),
        ("msrvtt", {"columns": {}}, r"not \['columns'\]"),
        ("msrvtt", {"captions": "last"}, '`captions` must be "first" or "all", got \'last\''),
        ("msrvtt", {"on_missing": "drop"}, '`on_missing` must be "raise" or "leave_out", got \'drop\''),
    ],
)
def test_a_name_or_setting_that_is_unknown_is_refused(tmp_path, name, options, message):
    with pytest.raises(ValueError, match=message):
        load_split(name, tmp_path, **options)


def test_a_plugin_registers_a_benchmark_under_a_name_of_its_own(monkeypatch):
    monkeypatch.setattr(registry, "_MODULES", {"own": "scalar_retrieval.eval.benchmarks.own"})
    registry.register_benchmark("msvd", "scalar_retrieval.eval.benchmarks.msvd")
    assert find_benchmark("msvd").task == "retrieval"
    with pytest.raises(ValueError, match="'own'"):
        registry.register_benchmark("own", "mine")
