"""Indexing: find the files, and update a gallery, once or while watching; the model is loaded when it is needed.

Nothing imported here imports torch, which loads for a second: mostly, no file is new.
"""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from scalar_retrieval.commands.schema import check_value, size
from scalar_retrieval.commands.texts import print_message, printable
from scalar_retrieval.gallery.decoding import Limits, SandboxedReader
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter, StrPath, check_writable
from scalar_retrieval.gallery.store.described import ADVICE, LEAST_SCORE, LIMITS, UNREAD, reading_of, scale_lines
from scalar_retrieval.gallery.store.file_lists import is_table
from scalar_retrieval.gallery.store.places import is_gallery
from scalar_retrieval.gallery.store.provenance import pending_download, provenance_of
from scalar_retrieval.gallery.store.rows import check_modality, check_precision
from scalar_retrieval.gallery.store.windows import LONGEST_SCENE, SCENES, SEGMENT
from scalar_retrieval.gallery.words.transcripts import SCREEN, SPEECH, Transcripts
from scalar_retrieval.modeling_scalar.modalities_scalar import PAPER_MODALITIES, kind_of
from scalar_retrieval.modeling_scalar.model_identity import (
    LIGHT,
    LIGHT_MODALITIES,
    ModelIdentity,
    default_device,
    device_of_name,
    identify,
    is_light,
    model_summary,
)

from .checks import check_model, check_output, check_segment, check_tools, find_readable
from .indexing import Indexer
from .languages import languages_read, name_of
from .reading import default_workers, memory_of_decoders
from .setup import Loaded, Setup, check_words, load
from .sources import FileSelection, find_clips, find_files, further_texts
from .states import FileState, Report, Status

if TYPE_CHECKING:
    import torch

    from scalar_retrieval.gallery.scales import Embed

DEFAULT_MODEL = LIGHT
"""The model of a new gallery; it needs neither training nor a download."""
_KINDS = {"video": "pictures", "audio": "sounds", "text": "texts of clips"}  # what a model may embed
_INTERVAL = 5.0  # seconds between scans of watched folders
_NUMBERS = {"frames": (None, size), "sound_seconds": (None, "[1, inf)"), "batch_size": size}

Say = Callable[..., None]
"""What passes lines on to the user."""


def _print(*lines: str) -> None:
    for line in lines:
        print_message(line)


def _warn(*lines: str) -> None:
    warnings.warn(printable(lines, "utf-8"), stacklevel=3)


def _ignore(*lines: str) -> None:
    pass


def _listed(given: StrPath | Sequence[StrPath]) -> list[str]:
    """One text or path, or several, as a list of texts."""
    if isinstance(given, str | os.PathLike):
        given = [given]
    return list(map(os.fspath, given))


# What a gallery is, or becomes --------------------------------------------------------------------------------------


def _model_of(known: Gallery | None) -> str:
    """The model of an existing gallery, or the default model."""
    if known is None:
        return DEFAULT_MODEL
    if known.model is not None:
        return known.model
    # Embeddings of an unknown model cannot be compared with others.
    if len(known):
        raise ValueError(f"{known.path} does not say which model made it. Name it by `model`.")
    return DEFAULT_MODEL


def _cutting(segment: float | str | None, known: Gallery | None) -> dict[str, float | bool | None]:
    """What the metadata shall say of how files are cut, if that is not said; fixed once a gallery holds clips."""
    if segment is None and known is not None and (len(known) or SEGMENT in known.metadata):
        return {}
    # What is asked for
    wanted = {SEGMENT: segment, SCENES: False}
    if segment in (None, "scenes"):
        wanted = {SEGMENT: LONGEST_SCENE, SCENES: True}
    elif segment == "none":
        wanted[SEGMENT] = None
    if known is None or not len(known):
        return wanted
    # What the gallery has
    found = {SEGMENT: known.metadata.get(SEGMENT), SCENES: bool(known.metadata.get(SCENES))}
    if found != wanted:
        kind = "whole files"
        if found[SCENES]:
            kind = f"scenes of at most {found[SEGMENT]:g} seconds"
        elif found[SEGMENT] is not None:
            kind = f"windows of {found[SEGMENT]:g} seconds"
        raise ValueError(f"{known.path} holds {kind}. Omit `segment`, or index into a new gallery.")
    return {}


def _reading(frames: int | None, sound_seconds: float | None, known: Gallery | None) -> dict[str, float]:
    """How much of each clip the model sees and hears, where it is not the model's own; fixed for a gallery."""
    wanted = {}
    if frames is not None:
        wanted["num_frames"] = frames
    if sound_seconds is not None:
        wanted["max_audio_seconds"] = sound_seconds
    # All clips of a gallery are read alike.
    if known is None or not known.metadata:
        return wanted
    found = reading_of(known.metadata)
    if not wanted.items() <= found.items():
        raise ValueError(
            f"{known.path} was indexed with other values of `frames` and `sound_seconds`. Omit them, or index into a "
            "new gallery."
        )
    return found


def _modalities(further: list[str], model: str, known: Gallery | None) -> tuple[str, ...] | None:
    """The modalities of the gallery, with `further` texts; `None` for those of the model."""
    for name in further:
        check_modality(name)
    if known is not None and known.metadata:
        lacking = [name for name in further if name not in known.modalities]
        if lacking:
            raise ValueError(
                f"{known.path} has the modalities {', '.join(known.modalities)}, not {', '.join(lacking)}. Index "
                "into a new gallery; with this one as `words_of`, its transcripts are used again."
            )
        return tuple(known.modalities)
    # A new gallery has those of the model, and further texts.
    own = []
    if is_light(model):  # whose folder is made the first time that it is identified
        own = LIGHT_MODALITIES
    elif identify(model).kind == "encoder":
        own = identify(model).modalities
    elif further:
        own = PAPER_MODALITIES
    return tuple(dict.fromkeys([*own, *further])) or None


# What is found, and what is left out --------------------------------------------------------------------------------


def _report_download(model: str, say: Say) -> None:
    """Say what is about to be downloaded, if anything."""
    for part in identify(model).parts:
        download = pending_download(part)
        if download is None:
            continue
        name = part.name
        if download.num_parameters is not None:
            name += f" with {download.num_parameters:,} parameters"
        say(
            f"Downloading the model {name}: {download.num_bytes / 1e9:.2f} GB in {download.num_files} files, once, "
            f"from {download.host} to {download.folder}. Later runs need no network, and use none with "
            "HF_HUB_OFFLINE=1. The model can also be given as a folder."
        )


def _report_unlisted(folders: Mapping[str, str], say: Say) -> None:
    for folder, reason in folders.items():
        say(f"{folder} is skipped, as it cannot be listed: {reason}.")


def _report_left_out(selection: FileSelection, warn: Say) -> None:
    """Say what was found but is not indexed."""
    for path, names in selection.unused.items():
        warn(f"Unused columns of {path}: {', '.join(names)}. To search in one, name it as `text` of a new gallery.")
    for line in selection.lines():
        warn(line)
    if selection.not_utf8:
        examples = ", ".join(map(ascii, sorted(selection.not_utf8)[:3]))
        warn(f"{len(selection.not_utf8)} files are skipped, as their names are not UTF-8. Rename them: {examples}")


def _add_words(texts: dict[str, dict[str, str]], words_of: Path, columns: Sequence[str]) -> None:
    """Add the texts of the files of another gallery, where lists give none."""
    for file in Gallery.open(words_of).files.values():
        known = texts.setdefault(file.path, {})
        for name, text in file.words().items():
            if name in columns:
                known.setdefault(name, text)


def _report_unused_words(words_of: Path, modalities: Sequence[str], warn: Say) -> None:
    """Name the kinds of words of another gallery that this one has no modality for."""
    # Texts are in the records of files, recognised words in files of their own.
    counts: Counter[str] = Counter()
    for file in Gallery.open(words_of).files.values():
        counts.update(file.words())
    for name, kind in {"subtitle": SPEECH, SCREEN: SCREEN}.items():
        counts[name] += Transcripts(words_of, kind).count()[1]
    for name, count in counts.items():
        if count and name not in modalities:
            warn(
                f"The words of {count} files of {words_of} are not used, as this gallery has no modality `{name}`. "
                f"Index into a new one with the `text` {name}."
            )


# Indexing -----------------------------------------------------------------------------------------------------------


def _begin(writer: GalleryWriter, loaded: Loaded, identity: ModelIdentity, setup: Setup, say: Say) -> None:
    """Record in a new gallery its model, and how clips are read; and say what it does not find."""
    model = setup.model
    if is_light(model):
        say(f"{LIMITS[model]} {ADVICE[model]}")
    kinds = set(map(kind_of, loaded.model.config.modalities))
    lacking = sorted(_KINDS[kind] for kind in _KINDS.keys() - kinds)
    if lacking:
        say(f"{model} embeds no {' and no '.join(lacking)}, so no query finds them.")
    if "text" in kinds and not any(part.reads_texts for part in identity.parts):
        say(f"Texts of clips are embedded by {identity.name} too, which is made for texts that are queries.")
    writer.metadata = provenance_of(loaded.model, identity.download()) | {"model": model} | setup.reading


def _fit_scales(writer: GalleryWriter, embed: "Embed", say: Say, warn: Say) -> None:
    """Make the cosines of different encoders comparable, once there are enough texts."""
    gallery = writer.gallery()
    if not len(gallery) or not gallery.lacks_scales:
        return
    # Not at the top: few galleries need it, and each once.
    from scalar_retrieval.gallery.scales import TooFewTextsError, measure_scales, own_texts

    try:
        writer.metadata |= measure_scales(gallery, own_texts(gallery), "titles and subtitles", embed)
    except TooFewTextsError as error:
        warn(f"{error} Until then, cosines of different encoders are compared as they are.")
        return
    writer.commit()
    say(*scale_lines(writer.metadata)[-1:])


def _settle(writer: GalleryWriter, embed: "Embed", say: Say, warn: Say) -> None:
    """Fit what depends on the gallery's own texts, once there are enough: scales, and then the least score."""
    _fit_scales(writer, embed, say, warn)
    gallery = writer.gallery()
    if gallery.lacks_least_score:
        # Not at the top, as above
        from scalar_retrieval.gallery.own_queries import measure_least_score
        from scalar_retrieval.gallery.scales import own_texts

        writer.metadata |= {LEAST_SCORE: measure_least_score(gallery, own_texts(gallery), embed)}
        writer.commit()


def _count_languages(writer: GalleryWriter, model: str, identity: ModelIdentity) -> None:
    """Note how many files are in languages that the model does not read."""
    counts = Counter(writer.gallery().file_rows.column("language").to_pylist())
    counts.pop(None, None)
    read = None
    if counts:
        read = languages_read(model, identity)
    if read is not None:
        for language in read:
            counts.pop(language, None)
    else:
        counts.clear()
    known = writer.metadata.get(UNREAD, {})
    # Names of languages load for a second, so they are not asked for if nothing was written.
    if not writer.bytes_written and sorted(counts.values()) == sorted(known.values()):
        return
    unread = {name_of(language): count for language, count in counts.most_common()}
    if unread != known:
        writer.metadata[UNREAD] = unread
        writer.commit()


def _watch(
    paths: Sequence[str], selection: FileSelection, indexer: Indexer, settle: Callable[[], None], say: Say
) -> None:
    """Keep a gallery up to date until Ctrl-C, and `settle` what follows from its clips."""
    from .watching import watch

    def find() -> list[str]:
        before = dict(selection.unlisted)
        selection.unlisted.clear()
        files = find_files(paths, selection)
        # A folder may be moved during a scan: it is skipped once two scans agree.
        further = {folder: reason for folder, reason in selection.unlisted.items() if folder not in before}
        if further:
            _report_unlisted(further, say)
            raise OSError("Some folders cannot be listed.")
        return files

    def update(files: list[str]) -> None:
        report = indexer.update(files, unlisted=selection.unlisted)
        settle()
        if len(report) > len(report.of(Status.UNCHANGED)):
            say(report.counts())

    say(
        f"Watching {', '.join(paths)}. The gallery can be searched meanwhile, but no other process can write to it "
        "until Ctrl-C."
    )
    _report_unlisted(selection.unlisted, say)
    with suppress(KeyboardInterrupt):
        watch(find, update, _INTERVAL, say)


def index(
    paths: StrPath | Sequence[StrPath],
    output: StrPath,
    model: StrPath | None = None,
    *,
    text: str | Sequence[str] = (),
    segment: float | Literal["scenes", "none"] | None = None,
    dtype: Literal["float16", "float32"] | None = None,
    frames: int | None = None,
    sound_seconds: float | None = None,
    batch_size: int = 8,
    prune: bool = False,
    watch: bool = False,
    transcribe: StrPath | None = None,
    read_text: bool = False,
    words_of: StrPath | None = None,
    exclude: str | Sequence[str] = (),
    pictures: bool = False,
    limits: str | Sequence[str] = (),
    cluster: str | None = None,
    progress: bool = True,
    on_report: Callable[[Report], object] | None = None,
) -> Gallery:
    """
    Embed new and changed files into a gallery; clips of other files stay.

    Each batch is committed at once: after an interruption, the same call continues.

    Args:
        paths (`str`, or several): folders, media files, and lists of files with a column `path`.
        output (`str`): folder of the gallery; an existing one is updated.
        model (`str`, *optional*): a folder, a Hub id or `"light"`, or encoders side by side, `"A+B+C"`; by default the
            gallery's own, or light for a new one.
        text (`str`, or several): text modalities of a new gallery, such as `"title"`: columns of lists.
        segment (`float` or `str`, *optional*): how a new gallery cuts longer files into windows, each of which is a
            clip: into windows of so many seconds; by default at `"scenes"`, at most a minute long; `"none"` cuts
            nothing.
        dtype (`str`, *optional*): precision of the vectors of a new gallery, `"float16"` by default, or `"float32"`.
        frames (`int`, *optional*): how many frames of each clip of a new gallery the model sees.
        sound_seconds (`float`, *optional*): how many seconds of each clip's sound the model hears.
        batch_size (`int`): number of clips embedded at a time.
        prune (`bool`): remove the clips of deleted files, but only where other files of the gallery are left: a drive
            may be unmounted.
        watch (`bool`): continue with new and changed files until Ctrl-C.
        transcribe (`str`, *optional*): a model that transcribes clips with sound but without subtitles, a folder or a
            Hub id; `""` is one that was downloaded before.
        read_text (`bool`): read on-screen text into the modality `screen`.
        words_of (`str`, *optional*): another gallery of the same files, whose transcripts and texts are used again.
        exclude (`str`, or several): patterns of files and folders to skip, as in
            [`~scalar_retrieval.gallery.filters.Filter`].
        pictures (`bool`): also embed the pictures in folders, each as a film of one frame; those that are named
            or in lists are embedded without it.
        limits (`str`, or several): limits on reading a stream, such as `"memory=2GiB"`, see
            [`~scalar_retrieval.gallery.decoding.worker.Limits`].
        cluster (`str`, *optional*): address of a Dask scheduler, whose workers read and embed.
        progress (`bool`): print a progress bar, and what became of the files, on stderr. Without it, only what could
            not be read or is left out is told, by warnings.
        on_report (`Callable`, *optional*): called with the [`~scalar_retrieval.search.states.Report`], the state of
            every file, instead of telling what became of them.

    Returns:
        The gallery as it is now. Its `failed_files()` were not read in full, for the reason that each names.

    Raises:
        FileNotFoundError: one of the paths or the model does not exist.
        ModuleNotFoundError: a package that this needs is not installed.
        ValueError: arguments are wrong or contradict the gallery; raised before the model is loaded.

    Example:

        >>> gallery = index("Videos", "galleries/videos", exclude="drafts/**", progress=False)
        >>> len(gallery)
        4
    """
    # Everything that can be wrong is reported before the model is loaded, which takes longest.
    paths = _listed(paths)
    if not paths:
        raise ValueError("`paths` must name at least one folder, file or list.")
    output = check_output(output)
    check_writable(output)
    if model is not None:
        model = check_model(os.fspath(model))
    say = _print if progress else _ignore
    warn = _print if progress else _warn
    if transcribe is not None:
        transcribe = os.fspath(transcribe)
    check_tools(transcribe, read_text, cluster)
    if segment is not None:
        segment = check_segment(segment)
    if words_of is not None:
        words_of = find_readable(words_of)
    check_precision(dtype or "float16")
    check_value({"frames": frames, "sound_seconds": sound_seconds, "batch_size": batch_size}, _NUMBERS)
    decoding = Limits.parse(_listed(limits), memory=memory_of_decoders(default_workers()))
    lists = list(filter(is_table, paths))
    if watch and lists:
        raise ValueError(f"`watch` takes folders and files, not lists, got {lists}. Index lists without it.")

    # Which model, which modalities, how clips are read, and which files
    known = None
    if is_gallery(output):
        known = Gallery.open(output)
        if dtype is not None and known.dtype not in (None, dtype):
            raise ValueError(f"{output} holds vectors in {known.dtype}. Omit `dtype`, or index into a new gallery.")
    model = model or _model_of(known)
    further = _listed(text)
    if read_text:
        further.append(SCREEN)
    modalities = _modalities(further, model, known)
    recognised = []
    if transcribe is not None:
        recognised.append("subtitle")
        if modalities is not None:
            check_words(modalities)
    if read_text:
        recognised.append(SCREEN)
    _cutting(segment, known)  # only checked here, as another process may begin the gallery
    reading = _reading(frames, sound_seconds, known)
    columns = further_texts(modalities or ())
    selection = FileSelection(_listed(exclude), pictures)
    files, texts = find_clips(paths, selection, columns)
    _report_left_out(selection, warn)
    if not files and not prune and not watch:
        raise ValueError(f"No video or audio file in {', '.join(map(repr, paths))}.")
    if words_of is not None:
        _add_words(texts, words_of, columns)

    # Download what is missing.
    recognizer_name = None
    if transcribe == "":
        from .recognizers import downloaded_recognizer  # not at the top: it imports torch

        # Its folder instead of its Hub id, of which a newer revision could be downloaded.
        recognizer_name, folder = downloaded_recognizer()
        transcribe = str(folder)
        say(f"Speech is transcribed with {recognizer_name}, which was downloaded before.")
    if transcribe is not None:
        _report_download(transcribe, say)
        recognizer = identify(transcribe)
        recognizer.download()
        transcribe = recognizer.name
    _report_download(model, say)
    identity = identify(model)
    identity.download()  # encoders side by side are named with their revisions from here on
    if known is not None:
        known.check_model(model, identity.fingerprint, must_know=True)
    setup = Setup(
        gallery=output.absolute(),
        model=model if is_light(model) else identity.name,
        modalities=modalities,
        transcribe=transcribe,
        recognizer_name=recognizer_name,
        read_text=read_text,
        limits=decoding,
        reading=reading,
    )

    # The model is loaded once there is something to embed; a cluster's workers choose their own devices.
    @cache
    def load_once() -> Loaded:
        device = default_device() if cluster is None else device_of_name("cpu")
        loaded = load(setup, device)
        say(f"{model}: {model_summary(loaded.model)}.")
        return loaded

    # Only this process writes to the gallery from here on.
    with ExitStack() as held:
        embed = None
        if cluster is not None:
            from .distributed import Cluster  # an extra

            embed = partial(held.enter_context(Cluster(cluster)).embed, setup)
        # A model that cannot be loaded leaves no new folder behind.
        if known is None or not known.metadata:
            load_once()
        writer = held.enter_context(GalleryWriter(output, dtype or "float16"))
        if not writer.metadata:
            _begin(writer, load_once(), identity, setup, say)
        there = writer.gallery()
        there.check_model(model, identity.fingerprint, must_know=True)  # another process may have begun it
        writer.metadata |= _cutting(segment, there)
        if words_of is not None:
            Transcripts(words_of).copy(writer.folder)
            _report_unused_words(words_of, writer.modalities, warn)
        indexer = Indexer(
            writer,
            load_once,
            SandboxedReader(decoding),
            recognised=recognised,
            batch_size=batch_size,
            prune=prune,
            progress=progress,
            embed=embed,
        )

        def embed_texts(texts: list[str]) -> "torch.Tensor":
            from scalar_retrieval.gallery.querying import embed_captions  # not at the top: see above

            loaded = load_once()
            return embed_captions(loaded.model, loaded.processor, texts)

        def settle() -> None:
            _settle(writer, embed_texts, say, warn)
            _count_languages(writer, model, identity)

        if watch:
            _watch(paths, selection, indexer, settle, say)
        else:
            indexer.update(files, texts, selection.unlisted)
            settle()

    # Tell what became of the files; a folder that cannot be listed is one that cannot be read.
    report = indexer.report
    for folder, reason in selection.unlisted.items():
        report.add(FileState(folder, Status.UNREADABLE, reason))
    gallery = Gallery.open(output)
    lines = list(report.lines(gallery))
    if on_report is not None:
        on_report(report)
    elif progress:
        say(*lines)
    elif report.has_failures():
        warn(*lines)
    return gallery


__all__ = ["index"]
