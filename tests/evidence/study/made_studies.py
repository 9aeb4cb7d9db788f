"""What runs of the study leave on disk."""

import hashlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evidence.study import measure, whole
from evidence.study.collecting import describe_clips
from evidence.study.corrected import CORRECTED
from evidence.study.results import MODALITIES
from evidence.study.runs import AS_SCALAR, RECIPES, WHOLE
from evidence.study.tuning import GRID
from scalar_retrieval.modeling_scalar.scores_scalar import DIRECTIONS

RECIPE = {
    "temperature": 0.3, "learning_rate": 3e-3, "num_train_epochs": 8, "loss_warmup_steps": 17,
    "full_view_decay_steps": 69,
}  # fmt: skip


def save_run(folder, own, recall, num_queries=100, fitted=0.0, single=None, **sets):
    """As the measuring of a run leaves it: of each set of clips so many percent of the first queries are hits.

    Args:
        folder (`Path`): name of its files, without their suffixes.
        recall (`float`): with nothing masked, in percent; half masked 10 less.
        fitted (`float`): how much more fitted numbers find.
        single (`dict`, *optional*): recall of single modalities, with nothing masked; half masked 10 less.
        sets (`float`): further sets of clips, and their recall.
    """

    def ranks(percent):
        return bytes(np.where(np.arange(num_queries) < percent * num_queries / 100, 1, 7).astype(np.uint8))

    rows = []
    for numbers, more in (("as trained", 0), ("fitted", fitted)):
        found = [("test", "nothing", recall), ("test", "0.5", recall - 10), ("test", "subtitle", recall - 10)]
        found += [(name, "nothing", value) for name, value in sets.items()]
        rows += [
            {"clips": clips, "score": own, "numbers": numbers, "masked": masked, "direction": direction,
             "ranks": ranks(value + more)}
            for clips, masked, value in found for direction in DIRECTIONS
        ]  # fmt: skip
    for score, percent in (single or {}).items():
        for masked, less in (("nothing", 0), ("0.5", 10)):
            row = {"clips": "test", "score": score, "numbers": "as trained", "masked": masked}
            for direction in DIRECTIONS:
                rows.append(row | {"direction": direction, "ranks": ranks(percent - less)})
    folder.parent.mkdir(parents=True, exist_ok=True)
    options = {"query_temperature": 0.5, "modality_scale": [1, 2, 3], "modality_offset": [0, 0, 1]}
    fits = [{"count": 7, "kept": True, "gain": {"difference": 0.5, "low": 0.1, "high": 0.9}, "options": options}]
    scores = [
        {"score": own, "numbers": "as trained", "options": options},
        {"score": own, "numbers": "fitted", "options": options, "fits": fits},
    ]
    content = {"own": own, "settings": RECIPE, "scores": scores}
    folder.with_name(f"{folder.name}.json").write_text(json.dumps(content))
    pq.write_table(pa.Table.from_pylist(rows), folder.with_name(f"{folder.name}.parquet"))


def save_trial(path, value):
    """As a trial of the tuning leaves it: MRR@10 of both directions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"text_to_video": value + 1, "video_to_text": value - 1}
    path.with_name(f"{path.name}.json").write_text(json.dumps({"settings": {}, "mean_reciprocal_rank": found}))


TWO_KINDS = (("single", ["video"]), ("several", ["video", "audio"]))
EVERY_KIND = (
    *TWO_KINDS, ("single", ["audio"]), ("single", ["subtitle"]), ("several", ["audio", "subtitle"]), ("shared", []),
)  # fmt: skip


def save_clips(root, num_queries=100, groups=TWO_KINDS, **changes):
    """As `python -m evidence miniature` leaves it, without clips."""
    root.mkdir(parents=True, exist_ok=True)
    manifest = {
        "version": 3, "seed": 0, "shared": 0.6, "complete": False, "disagree": 0.0, "alone": False, "evidence": [],
        "num_train": 1500, "num_validation": 500, "num_test": num_queries,
        "absent": {"test": {"video": 5, "audio": 15, "subtitle": 20}},
        "recall_at_1_ceilings": {"test": {
            reader: {"all": value} for reader, value in
            (("all", 95.0), ("video", 32.0), ("audio", 25.0), ("subtitle", 50.0))
        }},
    } | changes  # fmt: skip
    columns = {"video_id": "v", "caption": "c", "video_path": None, "audio_path": None, "subtitle": None}
    rows = [
        columns | {"kind": kind, "about": about, "attributes": {}}
        for kind, about in groups * (num_queries // len(groups))
    ]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (root / "test.jsonl").write_bytes(content)
    manifest["sha256"] = {"test.jsonl": hashlib.sha256(content).hexdigest()}
    (root / "miniature.json").write_text(json.dumps(manifest))
    return root


# A study of full shape -----------------------------------------------------------------------------------------------

OWN = {"scalar_uniform": "uniform", "gram": "gram", "pmrl": "pmrl", "hypergram": "hypergram", "triangle": "triangle"}
UNFITTED = ("hypergram", "triangle", *MODALITIES)
COUNTS = {"scalar": (1, 7), "uniform": (6,), "gram_corrected": (2,), "span_corrected": (1,), "scalar_corrected": (1,)}


def chosen_keys(variant, scores, curve):
    """The scores with their numbers that the measuring of a run ranks by, as `measure.choose` names them."""
    own = OWN.get(variant, "scalar")
    names = [own]
    if scores != "own":
        names += measure.COMPARED
    if scores == "all":
        names += measure.OTHERS
    keys = []
    for score in dict.fromkeys(names):
        if score not in CORRECTED:
            keys.append((score, "as trained"))
        if score not in UNFITTED:
            keys.append((score, "fitted"))
    if scores == "all":
        keys.append(("scalar_corrected", measure.KEPT_OR_NOT))
    if curve:
        keys += measure.at_temperatures()
    return own, [*keys, *((name, "as trained") for name in MODALITIES)]


def make_run(path, variant, seed, sets, scores="own", curve=False):
    """As the measuring of a run leaves it, with ranks drawn at random.

    Args:
        path (`Path`): name of its files, without their suffixes.
        variant (`str`), seed (`int`): the training.
        sets (`dict[str, int]`): sets of clips, and how many queries they have.
        scores (`str`), curve (`bool`): as in `measure.measure`.
    """
    rng = np.random.default_rng([seed, *map(ord, f"{path.parent.name} {variant}")])
    own, keys = chosen_keys(variant, scores, curve)
    rows = []
    for clips, number in sets.items():
        for key in keys:
            for masked in measure._masked_of(clips, key, own, MODALITIES, scores != "own"):
                for direction in DIRECTIONS:
                    if key[0] in MODALITIES and masked != "nothing" and direction == DIRECTIONS[1]:
                        continue
                    chance = 0.2 if key[0] in MODALITIES else 0.6
                    ranks = bytes(rng.geometric(chance, number).clip(max=measure.HIGHEST).astype(np.uint8))
                    row = {"clips": clips, "score": key[0], "numbers": key[1], "masked": masked}
                    rows.append(row | {"direction": direction, "ranks": ranks})
    if scores == "all":
        row = rows[0] | {"clips": "test", "score": measure.ROUTER, "numbers": "fitted", "masked": "nothing"}
        rows.append(row | {"direction": DIRECTIONS[0]})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path.with_name(f"{path.name}.parquet"), compression="zstd")

    entries = []
    for score, numbers in keys:
        entry = {"score": score, "numbers": numbers, "options": {"query_temperature": 0.41}}
        if numbers == "fitted":
            gain = {"difference": 0.5, "low": 0.1, "high": 0.9}
            entry["fits"] = []
            for place, count in enumerate(COUNTS.get(score, (3,))):
                fit = {
                    "count": count,
                    "kept": place == seed % 2,
                    "gain": gain,
                    "options": {"modality_scale": [1, 2, 3]},
                }
                entry["fits"].append(fit)
        if numbers in ("as trained", "fitted"):
            entries.append(entry)
    settings = {name: RECIPE[name] for name in GRID} | {"query_temperature": None}
    if variant in ("gram", "hypergram", "triangle"):
        settings["learned_temperature"] = 0.089
    content = {"own": own, "settings": settings, "scores": entries}
    path.with_name(f"{path.name}.json").write_text(json.dumps(content))


def save_second_stage(path, label, seed):
    first = {}
    staged = {}
    for rate in ("0", "0.5", "0.9"):
        for direction in DIRECTIONS:
            first[f"{direction}, {rate} masked"] = 60.0 + seed % 2
            for rule in ("match", "fused"):
                staged[f"{direction}, {rate} masked, {rule}"] = 50.0 + seed % 2
    content = {"label": label, "seed": seed, "first": first, "staged": staged, "auc": 0.8, "weight": 0.01}
    path.with_name(f"{path.name}-second-stage.json").write_text(json.dumps(content))


def save_labels(path, seed):
    content = {"accuracy": 80.0 + seed % 3, "text_centroid_cosine": 0.7 + 0.01 * (seed % 3)}
    content["initial_text_centroid_cosine"] = 0.6
    path.with_name(f"{path.name}-labels.json").write_text(json.dumps(content))


def save_whole_study(folder, num_queries=60):
    """As its runs leave it: all experiments, variants, seeds, sets of clips, directions and masks."""
    complete = num_queries * 3 // 5
    for name, changes in {
        "main": {}, "repeated": {"seed": 1}, "disagreeing": {"disagree": 1.0}, "reranked": {}, "complete": {
        "num_test": 0, "num_train": 900}, "sharing-0": {"shared": 0.0}, "sharing-0.3": {"shared": 0.3},
        "sharing-1": {"shared": 1.0},
    }.items():  # fmt: skip
        absent = {"video": num_queries // 20, "audio": num_queries * 3 // 20, "subtitle": num_queries // 5}
        root = save_clips(folder.with_name("made") / name, num_queries, EVERY_KIND, absent={"test": absent}, **changes)
        describe_clips(root, folder / "clips" / f"{name}.json", name in whole._WITH_KINDS)
    of_main = {"test": num_queries, "complete": complete, "disagree": num_queries}
    for experiment in ("main", "repeated"):
        for variant in RECIPES:
            if variant in WHOLE and experiment == "repeated":
                continue
            scores = "compared" if variant in whole._COMPARED else "own"
            if variant == whole._BY_ALL_SCORES:
                scores = "all"
            for seed in (50, 51, 52):
                path = folder / experiment / f"{variant}-{seed}"
                make_run(path, variant, seed, of_main, scores, variant in whole._CURVED)
                if variant in whole._LABELLED and seed < 52:
                    save_labels(path, seed)
                if experiment == "main" and variant in whole._RERANKED and seed < 52:
                    save_second_stage(path, variant, seed)
    others = {f"sharing-{level}": whole._SHARING_VARIANTS for level in ("0", "0.3", "1")}
    others |= dict.fromkeys(("views-complete", "views-new-heads"), whole._VIEWED)
    for experiment, variants in others.items():
        for variant in variants:
            for seed in (50, 51):
                sets = {"test": num_queries, "complete": complete}
                make_run(folder / experiment / f"{variant}-{seed}", variant, seed, sets)
    methods = {}
    for variant in RECIPES.keys() - (AS_SCALAR.keys() - {"scalar"}):
        chosen = {name: values[0] for name, values in GRID.items()}
        trials = []
        for name, values in GRID.items():
            for value in values:
                trials.append({"settings": chosen | {name: value}, "found": [40, 41], "mean_reciprocal_rank": 40.5})
        methods[variant] = {"chosen": chosen, "trials": trials}
    content = {"grid": GRID, "split": "validation", "measure": "mean_reciprocal_rank", "methods": methods}
    (folder / "tuning.json").write_text(json.dumps(content))
