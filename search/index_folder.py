"""`scalar index`: find the files, load the model, and update a gallery, once or while watching."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import torch

from scalar_retrieval.commands.texts import print_message
from scalar_retrieval.gallery.decoding import Limits
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter, check_writable
from scalar_retrieval.gallery.store.columns import check_modality
from scalar_retrieval.gallery.store.contents import is_gallery
from scalar_retrieval.gallery.store.described import LIMITS, reading_of
from scalar_retrieval.gallery.store.file_lists import is_table
from scalar_retrieval.gallery.store.provenance import pending_download, provenance_of
from scalar_retrieval.gallery.store.windows import LONGEST_SCENE, SCENES, SEGMENT
from scalar_retrieval.gallery.words.transcripts import SCREEN, SPEECH, Transcripts
from scalar_retrieval.modeling_scalar.model_identity import (
    LIGHT,
    LIGHT_MODALITIES,
    default_device,
    identify,
    is_light,
    model_summary,
)
from scalar_retrieval.modeling_scalar.scores_scalar import PAPER_MODALITIES

from .indexing import Indexer
from .reading import default_workers, memory_of_decoders
from .setup import Setup, load
from .sources import FileSelection, find_clips, find_files, further_texts
from .states import FileState, Report, Status
from .watching import watch

if TYPE_CHECKING:
    from .settings import IndexConfig

DEFAULT_MODEL = LIGHT
"""The model of a new gallery; it needs neither training nor a download."""
_INTERVAL = 5.0  # seconds between scans of watched folders


def _model_of(config: "IndexConfig", known: Gallery | None) -> str:
    """The model that is named, or that of an existing gallery, or the default model."""
    if config.model is not None:
        return config.model
    if known is None:
        return DEFAULT_MODEL
    if known.model is not None:
        return known.model
    # Embeddings of an unknown model cannot be compared with others.
    if len(known):
        raise ValueError(f"{config.output} does not say which model made it. Name it with --model.")
    return DEFAULT_MODEL


def _print_download(model: str) -> None:
    """Print what is about to be downloaded, if anything."""
    download = pending_download(model)
    if download is None:
        return
    name = model
    if download.num_parameters is not None:
        name += f" with {download.num_parameters:,} parameters"
    print_message(
        f"Downloading the model {name}: {download.num_bytes / 1e9:.2f} GB in {download.num_files} files, once, from "
        f"{download.host} to {download.folder}. Later runs need no network, and use none with HF_HUB_OFFLINE=1. "
        "--model also takes a folder."
    )


def _choose_segment(writer: GalleryWriter, config: "IndexConfig", has_clips: bool) -> None:
    """Record in the metadata how files are cut; fixed once the gallery holds clips."""
    if config.segment is None and (has_clips or SEGMENT in writer.metadata):
        return
    # What the options ask for
    wanted = {SEGMENT: config.segment, SCENES: False}
    if config.segment in (None, "scenes"):
        wanted = {SEGMENT: LONGEST_SCENE, SCENES: True}
    elif config.segment == "none":
        wanted[SEGMENT] = None
    # What the gallery has
    found = {SEGMENT: writer.metadata.get(SEGMENT), SCENES: bool(writer.metadata.get(SCENES))}
    if has_clips and found != wanted:
        kind = "whole files"
        if found[SCENES]:
            kind = f"scenes of at most {found[SEGMENT]:g} seconds"
        elif found[SEGMENT] is not None:
            kind = f"windows of {found[SEGMENT]:g} seconds"
        raise ValueError(f"{writer.folder} holds {kind}. Omit --segment, or index into a new gallery.")
    writer.metadata |= wanted


def _reading(config: "IndexConfig", known: Gallery | None) -> dict[str, float]:
    """How much of each clip the model sees and hears, where it is not the model's own; fixed for a gallery."""
    wanted = {}
    if config.frames is not None:
        wanted["num_frames"] = config.frames
    if config.sound_seconds is not None:
        wanted["max_audio_seconds"] = config.sound_seconds
    # All clips of a gallery are read alike.
    if known is None or not known.metadata:
        return wanted
    found = reading_of(known.metadata)
    if not wanted.items() <= found.items():
        raise ValueError(
            f"{config.output} was indexed with other settings of --frames and --sound-seconds. Omit them, or index "
            "into a new gallery."
        )
    return found


def _modalities(config: "IndexConfig", model: str, known: Gallery | None) -> tuple[str, ...] | None:
    """The modalities of the gallery; `None` for those of the model."""
    further = list(config.text)
    if config.read_text:
        further.append(SCREEN)
    for name in further:
        check_modality(name)
    if known is not None and known.metadata:
        lacking = [name for name in further if name not in known.modalities]
        if lacking:
            raise ValueError(
                f"{config.output} has the modalities {', '.join(known.modalities)}, not {', '.join(lacking)}. Index "
                f"into a new gallery; with `--words-of {quote(str(config.output))}`, its transcripts are used again."
            )
        return tuple(known.modalities)
    # A new gallery has those of the model, and further texts.
    if is_light(model):
        further = [*LIGHT_MODALITIES, *further]
    elif further:
        further = [*PAPER_MODALITIES, *further]
    return tuple(dict.fromkeys(further)) or None


def _print_unlisted(folders: Mapping[str, str]) -> None:
    for folder, reason in folders.items():
        print_message(f"{folder} is skipped, as it cannot be listed: {reason}.")


def _find(
    config: "IndexConfig", selection: FileSelection, columns: Sequence[str]
) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The files that exist, and the texts that are given for them, by lists or by another gallery."""
    files, texts = find_clips(config.paths, selection, columns)
    # Report what is left out.
    for path, names in selection.unused.items():
        print_message(
            f"Unused columns of {path}: {', '.join(names)}. --text NAME with a new gallery makes one searchable."
        )
    if selection.left_out:
        print_message(
            f"{len(selection.left_out)} hidden or system files and folders are skipped. To index one, name it."
        )
    if selection.not_utf8:
        examples = ", ".join(map(ascii, sorted(selection.not_utf8)[:3]))
        print_message(
            f"{len(selection.not_utf8)} files are skipped, as their names are not UTF-8. Rename them: {examples}"
        )
    _print_unlisted(selection.unlisted)
    if not files and not config.prune and not config.watch:
        places = ", ".join(repr(str(path)) for path in config.paths)
        raise ValueError(f"No video or audio file in {places}.")
    # The texts of another gallery; lists take precedence.
    if config.words_of is not None:
        for file in Gallery.open(config.words_of).files.values():
            known = texts.setdefault(file.path, {})
            for name, text in file.words().items():
                if name in columns:
                    known.setdefault(name, text)
    return files, texts


def _print_unused_words(words_of: Path, modalities: Sequence[str]) -> None:
    """Name the kinds of words of another gallery that this one has no modality for."""
    # Texts are in the records of files, recognised words in files of their own.
    counts: Counter[str] = Counter()
    for file in Gallery.open(words_of).files.values():
        counts.update(file.words())
    for name, kind in {"subtitle": SPEECH, SCREEN: SCREEN}.items():
        counts[name] += Transcripts(words_of, kind).count()[1]
    for name, count in counts.items():
        if count and name not in modalities:
            print_message(
                f"The words of {count} files of {words_of} are not used, as this gallery has no modality `{name}`. "
                f"Index into a new one with --text {name}."
            )


def _watch(config: "IndexConfig", selection: FileSelection, indexer: Indexer) -> None:
    """Keep a gallery up to date until Ctrl-C."""

    def find() -> list[str]:
        before = dict(selection.unlisted)
        selection.unlisted.clear()
        files = find_files(config.paths, selection)
        # A folder may be moved during a scan: it is skipped once two scans agree.
        further = {folder: reason for folder, reason in selection.unlisted.items() if folder not in before}
        if further:
            _print_unlisted(further)
            raise OSError("Some folders cannot be listed.")
        return files

    def update(files: list[str]) -> None:
        report = indexer.update(files, unlisted=selection.unlisted)
        if len(report) > len(report.of(Status.UNCHANGED)):
            print_message(report.counts())

    print_message(
        f"Watching {', '.join(map(str, config.paths))}. The gallery can be searched meanwhile, but no other process "
        "can write to it until Ctrl-C."
    )
    with suppress(KeyboardInterrupt):
        watch(find, update, _INTERVAL)


def index_folder(config: "IndexConfig") -> Report:
    """
    Embed new and changed files into a gallery.

    Args:
        config ([`~scalar_retrieval.search.settings.IndexConfig`]): what to index, and how.

    Returns:
        The state of every file.

    Raises:
        ValueError: settings contradict each other or the gallery; raised before the model is loaded.
    """
    lists = []
    for path in config.paths:
        if config.watch and is_table(path):
            lists.append(str(path))
    if lists:
        raise ValueError(f"`--watch` takes folders and files, not lists, got {lists}. Index lists without it.")
    recognizer_name = None
    if config.transcribe == "":
        from .recognizers import downloaded_recognizer  # not at the top: it imports what only transcribing needs

        # Its folder instead of its Hub id, of which a newer revision could be downloaded.
        recognizer_name, folder = downloaded_recognizer()
        config = replace(config, transcribe=str(folder))
        print_message(f"Speech is transcribed with {recognizer_name}, which was downloaded before.")
    # Everything that can be wrong is reported before the model is loaded, which takes longest.
    limits = Limits.parse(config.limit or [], memory=memory_of_decoders(default_workers()))
    check_writable(config.output)

    # Which model, which modalities, and which files
    known = None
    if is_gallery(config.output):
        known = Gallery.open(config.output)
    model = _model_of(config, known)
    selection = FileSelection(config.exclude)
    modalities = _modalities(config, model, known)
    columns = further_texts(modalities or ())
    files, texts = _find(config, selection, columns)
    if config.dtype is not None and known is not None and known.dtype not in (None, config.dtype):
        raise ValueError(f"{config.output} holds vectors in {known.dtype}. Omit --dtype, or index into a new gallery.")

    # Download what is missing.
    _print_download(model)
    identity = identify(model)
    if known is not None:
        known.check_model(model, identity.fingerprint, must_know=True)
    transcribe = None
    if config.transcribe is not None:
        _print_download(config.transcribe)
        recognizer = identify(config.transcribe)
        recognizer.download()
        transcribe = recognizer.name
    name = model if is_light(model) else identity.name
    setup = Setup(
        gallery=config.output.absolute(),
        model=name,
        modalities=modalities,
        transcribe=transcribe,
        recognizer_name=recognizer_name,
        read_text=config.read_text,
        limits=limits,
        reading=_reading(config, known),
    )

    # Only this process writes to the gallery from here on.
    with ExitStack() as held:
        embed = None
        if config.cluster is None:
            device = default_device()
        else:
            from .distributed import Cluster  # an extra

            cluster = held.enter_context(Cluster(config.cluster))
            embed = partial(cluster.embed, setup)
            device = torch.device("cpu")  # its workers embed, and choose their own devices
        loaded = load(setup, device)
        print_message(f"{model}: {model_summary(loaded.model)}.")
        # A new gallery records its model, and how clips are read.
        writer = held.enter_context(GalleryWriter(config.output, config.dtype or "float16"))
        if not writer.metadata:
            if is_light(model):
                print_message(LIMITS[model])
            writer.metadata = provenance_of(loaded.model, identity.download()) | {"model": name} | setup.reading
        there = writer.gallery()
        there.check_model(model, identity.fingerprint, must_know=True)  # another process may have begun it
        _choose_segment(writer, config, len(there) > 0)
        if config.words_of is not None:
            Transcripts(config.words_of).copy(writer.folder)
            _print_unused_words(config.words_of, loaded.processor.modalities)
        indexer = Indexer(
            writer,
            loaded.model,
            loaded.processor,
            recognizer=loaded.recognizer,
            line_reader=loaded.line_reader,
            batch_size=config.batch_size,
            prune=config.prune,
            progress=True,
            embed=embed,
        )
        if config.watch:
            _watch(config, selection, indexer)
        else:
            indexer.update(files, texts, selection.unlisted)
    # A folder that cannot be listed is reported as a file that cannot be read.
    for folder, reason in selection.unlisted.items():
        indexer.report.add(FileState(folder, Status.UNREADABLE, reason))
    return indexer.report


__all__ = ["index_folder"]
