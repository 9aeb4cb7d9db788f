"""`scalar index`: find the files, load the model, and update a gallery, once or while watching.

Several processes started by `accelerate launch` share the work: the first one finds the files and writes.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote

import torch

import modeling_scalar
from commands.errors import say
from gallery.columns import check_modality
from gallery.decoding import Limits, sandboxed
from gallery.gallery import Gallery, GalleryWriter, check_format, is_gallery
from gallery.parallel import Crew, num_local_processes
from gallery.provenance import describe, pending_download
from gallery.querying import modalities_option
from gallery.tables import is_table
from gallery.transcripts import SCREEN, Transcripts
from gallery.windows import SCENES, SEGMENT, check_windows
from gallery.writing import check_place
from modeling_scalar.model_identity import LIGHT, ModelIdentity, device_of_name, dtype_of_name, identify, said_of
from modeling_scalar.processing_scalar import ScalarProcessor
from modeling_scalar.retrieval_scalar import ScalarRetrievalModel
from modeling_scalar.scores_scalar import PAPER_MODALITIES, kind_of

from .adding import add_modality
from .indexing import Indexer, help_index
from .reading import default_workers, memory_of_decoders
from .recognizers import Recognizer, recognizer_of
from .screen import LineReader, RapidOcrReader
from .settings import DEFAULT_MODEL, LONGEST_SCENE, IndexConfig
from .sources import Selection, find_clips, find_files
from .states import Report, Status
from .watching import watch

_INTERVAL = 5.0  # seconds between scans of watched folders


def _default_model(output: Path) -> str:
    """The model of an existing gallery, or the default model."""
    found = Gallery.open(output) if is_gallery(output) else None
    if found is None or (found.model is None and not len(found)):
        return DEFAULT_MODEL
    if found.model is None:
        raise ValueError(f"{output} does not say which model made it. Name it with --model.")
    return found.model


def _announce(model: str) -> None:
    """Say what is about to be downloaded, if anything."""
    download = pending_download(model)
    if download is not None:
        size = "" if download.num_parameters is None else f" with {download.num_parameters:,} parameters"
        say(
            f"Downloading the model {model}{size}: {download.num_bytes / 1e9:.2f} GB in {download.num_files} "
            f"files, once, from {download.host} to {download.folder}. Later runs need no network, and use none with "
            "HF_HUB_OFFLINE=1. --model also takes a folder."
        )


def _recognizer(model: str, processor: ScalarProcessor, device: torch.device) -> Recognizer:
    if "subtitle" not in processor.modalities:
        raise ValueError("`--transcribe` makes subtitles, but the model of this gallery has no modality `subtitle`.")
    return recognizer_of(identify(model).download(), model, device)


def _load(
    identity: ModelIdentity, modalities: Sequence[str] | None, config: IndexConfig, place: torch.device
) -> tuple[ScalarRetrievalModel, ScalarProcessor]:
    """Load the model with these modalities; a ValueError if it cannot take them."""
    chosen = modalities_option(identity, modalities)
    network, processor = modeling_scalar.load_model(
        identity.download(), dtype_of_name(config.model_dtype), place, **chosen
    )
    has = network.config.modalities
    if lacking := [name for name in modalities or () if name not in has and name not in PAPER_MODALITIES]:
        raise ValueError(
            f"{identity.name} embeds {', '.join(has)}, and cannot also take {', '.join(lacking)}. A joint encoder as "
            "published takes any text."
        )
    return network, processor


def _change(
    config: IndexConfig,
    identity: ModelIdentity,
    texts: Mapping[str, Mapping[str, str]],
    limits: Limits,
    place: torch.device,
    line_reader: LineReader | None,
) -> None:
    """Remove modalities from an existing gallery, and add others."""
    with GalleryWriter(config.output) as writer:
        for name in config.drop:
            writer.remove_modality(name)
            say(f"Removed {name} from {config.output}.")
        for name in config.add:
            network, processor = _load(identity, [name], config, place)
            processor = sandboxed(processor, limits)
            recognizer = None
            if config.transcribe is not None and name == "subtitle":
                recognizer = _recognizer(config.transcribe, processor, network.device)
            options = {
                "line_reader": line_reader if name == SCREEN else None,
                "num_workers": config.num_workers,
                "batch_size": config.batch_size,
                "progress": True,
            }
            count = add_modality(writer, name, network, processor, texts, recognizer=recognizer, **options)
            say(f"Added {name} to {config.output}: {count} of {len(writer.gallery())} clips have it.")


def _choose_segment(writer: GalleryWriter, config: IndexConfig, has_clips: bool) -> None:
    """Record in the metadata how files are cut; fixed once the gallery holds clips."""
    found = {name: value for name, value in writer.metadata.items() if name in (SEGMENT, SCENES)}
    if config.segment is None:
        return
    wanted: dict[str, object] = {SEGMENT: config.segment}
    if config.segment == "scenes":
        longest = found[SEGMENT] if found.get(SCENES) else LONGEST_SCENE
        wanted = {SEGMENT: config.segment_max or longest, SCENES: True}
    if wanted == found:
        return
    if has_clips:
        scenes = "scenes of at most" if found.get(SCENES) else "windows of"
        kind = f"{scenes} {found[SEGMENT]:g} seconds" if found else "whole files"
        raise ValueError(f"{writer.folder} holds {kind}. Omit --segment, or index into a new gallery.")
    others = {name: value for name, value in writer.metadata.items() if name not in found}
    writer.metadata = others | wanted


def _modalities(config: IndexConfig) -> tuple[list[str] | None, list[str]]:
    """
    The modalities of the gallery after `--add` and `--drop`, `None` for those of the model; and those among them that
    are texts, for which lists may have columns.
    """
    further = [*config.text, *([SCREEN] if config.read_text and SCREEN not in config.text else [])]
    base = ("subtitle", "title") if config.model == LIGHT else PAPER_MODALITIES
    names = list(dict.fromkeys([*base, *further])) if further or config.model == LIGHT else None
    for name in (*further, *config.add):
        check_modality(name)
    if is_gallery(config.output) and (known := Gallery.open(config.output)).metadata:
        names = list(known.modalities)
        if lacking := [name for name in further if name not in (*names, *config.add)]:
            raise ValueError(
                f"{config.output} has the modalities {', '.join(names)}. Add {', '.join(lacking)} with --add "
                f"{' --add '.join(lacking)}."
            )
        if unknown := [name for name in config.drop if name not in names]:
            raise ValueError(f"{config.output} has the modalities {', '.join(names)}, not {', '.join(unknown)}.")
        if there := [name for name in config.add if name in names]:
            raise ValueError(f"{config.output} already has {', '.join(there)}. Omit --add.")
        names = [name for name in names if name not in config.drop] + list(config.add)
    elif config.add or config.drop:
        raise ValueError(
            f"--add and --drop change an existing gallery, but there is none at {config.output}. For a new one, use "
            "--text."
        )
    texts = [name for name in names or () if kind_of(name) == "text" and name != "subtitle"]
    return names, texts


def _find(
    config: IndexConfig, selection: Selection, evidence: Sequence[str]
) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The files that exist, and the texts that lists give for them."""
    if config.prune and (missing := [str(path) for path in config.paths if not path.exists()]):
        command = f"scalar remove {quote(str(config.output))} {quote(missing[0])}"
        raise FileNotFoundError(
            f"There is no file or folder {missing[0]!r}. If it was deleted, `{command}` removes its clips."
        )
    files, texts = find_clips(config.paths, config.ignore, selection, evidence)
    hidden = f"{len(selection.left_out)} hidden or system files and folders are skipped; --hidden includes them."
    if not files and not config.prune and not config.watch:
        places = ", ".join(repr(str(path)) for path in config.paths)
        raise ValueError(f"No video or audio file in {places}.{f' {hidden}' if selection.left_out else ''}")
    if selection.left_out:
        say(hidden)
    return files, texts


def _check(config: IndexConfig, limits: Limits) -> None:
    """Refuse settings that the gallery cannot take, and download missing models."""
    output = config.output
    check_format(output)
    check_windows(limits.duration, config.segment_max if config.segment == "scenes" else config.segment)
    if not is_gallery(output):
        check_place(output)
    elif config.dtype is not None and (held := Gallery.open(output).dtype) not in (None, config.dtype):
        raise ValueError(f"{output} holds vectors in {held}. Omit --dtype, or index into a new gallery.")
    model = config.model or _default_model(output)
    _announce(model)
    fingerprint = identify(model).fingerprint
    if is_gallery(output):
        Gallery.open(output).check_model(model, fingerprint, must_know=True)
    if config.transcribe is not None:
        _announce(config.transcribe)
        identify(config.transcribe).download()


def _watch(config: IndexConfig, selection: Selection, indexer: Indexer) -> None:
    """Keep a gallery up to date until Ctrl-C."""

    def update(files: list[str], gone: list[str]) -> None:
        report = indexer.update(files, gone=gone)
        if len(report) > len(report.of(Status.UNCHANGED)):
            say(report.counts())

    say(
        f"Watching {', '.join(map(str, config.paths))}. The gallery can be searched meanwhile, but no other process "
        "can write to it until Ctrl-C."
    )
    with suppress(KeyboardInterrupt):
        watch(lambda: find_files(config.paths, selection), update, _INTERVAL)


def index_folder(config: IndexConfig) -> Report | None:
    """
    Embed new and changed files into a gallery.

    Args:
        config ([`~search.settings.IndexConfig`]): what to index, and how.

    Returns:
        The state of every file; `None` in a process that helped the first one.

    Raises:
        ValueError: settings contradict each other or the gallery; raised before the model is loaded.
    """
    crew = Crew.launched()
    with crew.together():
        if config.watch and (lists := [str(path) for path in config.paths if is_table(path)]):
            raise ValueError(f"`--watch` takes folders and files, not lists, got {lists}. Index lists without it.")
        if crew.size > 1 and (config.watch or config.device not in (None, "cpu")):
            name = "--watch" if config.watch else "--device"
            raise ValueError(f"`{name}` is for a single process, but {crew.size} were launched. Omit it.")
        place = crew.device if config.device is None else device_of_name(config.device)
        num_workers = config.num_workers or default_workers(num_local_processes())
        memory = memory_of_decoders(num_workers, num_local_processes())
        limits = Limits.parse(config.limit or [], memory=memory)
        if crew.is_main:
            selection = Selection(config.exclude, config.hidden)
            modalities, evidence = _modalities(config)
            files, texts = _find(config, selection, evidence)
            if config.words_of is not None:
                for file in Gallery.open(config.words_of).files.values():
                    known = {name: text for name, text in file.words().items() if name in evidence}
                    texts[file.path] = known | texts.get(file.path, {})
            # Everything that can be wrong is reported before the model is loaded, which takes longest.
            _check(config, limits)
    line_reader = RapidOcrReader() if config.read_text else None
    with crew.together():  # the first process has downloaded the models
        model = config.model or _default_model(config.output)
        identity = identify(model)
        if crew.is_main and (config.add or config.drop):
            _change(config, identity, texts, limits, place, line_reader)
        modalities, _ = _modalities(replace(config, add=(), drop=()))
        network, processor = _load(identity, modalities, config, place)
        processor = sandboxed(processor, limits)
        recognizer = None if config.transcribe is None else _recognizer(config.transcribe, processor, network.device)
    options = {"recognizer": recognizer, "line_reader": line_reader}
    options |= {"num_workers": num_workers}
    if not crew.is_main:
        help_index(crew, config.output, network, processor, **options)
        return None
    several = "" if crew.size == 1 else f" by {crew.size} processes"
    say(f"{model}: {said_of(network)}{several}.")
    with GalleryWriter(config.output, config.dtype or "float16") as writer:
        if not writer.metadata:
            name = model if model == LIGHT else identity.name
            writer.metadata = describe(network, identity.download()) | {"model": name}
        there = writer.gallery()
        there.check_model(model, identity.fingerprint, must_know=True)  # another process may have begun it
        _choose_segment(writer, config, len(there) > 0)
        if config.words_of is not None:
            Transcripts(config.words_of).copy(writer.folder)
        options |= {"batch_size": config.batch_size, "prune": config.prune, "progress": True, "crew": crew}
        indexer = Indexer(writer, network, processor, **options)
        if config.watch:
            _watch(config, selection, indexer)
        else:
            indexer.update(files, texts)
    return indexer.report


__all__ = ["index_folder"]
