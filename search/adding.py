"""A further modality for a gallery that exists: its files are read again for that alone, and nothing else changes."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from commands.errors import say
from gallery.decoding import tolerant
from gallery.embedding import batches_ahead, embed_batches, in_batches
from gallery.gallery import GalleryWriter
from modeling_scalar.processing_scalar import ScalarProcessor
from search.reading import Job, Reader, default_workers
from search.recognizers import Recognizer
from search.screen import LineReader, Screen
from search.speech import Speech


def add_modality(
    writer: GalleryWriter,
    name: str,
    model: PreTrainedModel,
    processor: ScalarProcessor,
    texts: Mapping[str, Mapping[str, str]] | None = None,
    *,
    recognizer: Recognizer | None = None,
    line_reader: LineReader | None = None,
    batch_size: int = 8,
    num_workers: int | None = None,
    progress: bool = False,
) -> int:
    """
    Add a modality to the clips of a gallery, in one commit.

    A clip lacks it if its file is gone or has no such content. The stored vectors of other modalities stay the same,
    bit for bit.

    Args:
        writer ([`~gallery.gallery.GalleryWriter`]): the gallery.
        name (`str`): the name of the modality.
        model, processor: those of the gallery, with this modality alone.
        texts (`dict[str, dict[str, str]]`, *optional*): texts from lists, by file and by modality.
        recognizer, line_reader, batch_size, num_workers, progress: as in [`~search.indexing.Indexer`].

    Returns:
        The number of clips that have it.

    Raises:
        ValueError: the gallery already has it.
    """
    gallery, texts = writer.gallery(), texts or {}
    num_workers = default_workers() if num_workers is None else num_workers
    processor = tolerant(processor)
    reader = Reader(processor, Speech(writer.folder, recognizer), Screen(writer.folder, line_reader))
    files, rows = gallery.files, []

    def jobs() -> Iterator[Job]:
        for clip_id in gallery.clip_ids:
            path, start, stop = gallery.place_of(clip_id)
            if path in files:
                rows.append(clip_id)
                window = None if start is None else (start, stop)
                yield Job(path, window, texts.get(path, {}), files[path].words(), None)

    batches = in_batches(jobs(), batch_size)
    embedded = embed_batches(model, processor, reader, num_workers, batches, batches_ahead(batch_size, num_workers))
    found: list[tuple[str, torch.Tensor]] = []
    earlier: dict[str, str | None] = {}
    failed: dict[str, str] = {}
    bar = tqdm(total=len(gallery), unit="clip", desc=name, disable=not progress)
    with closing(embedded) as embedded, bar:
        first = 0
        for batch in embedded:
            if batch.embeds is not None:
                embeds, mask = (values[:, processor.modalities.index(name)] for values in batch.embeds)
                names = [rows[first + place] for place in batch.embeddable]
                found += [pair for pair, has_it in zip(zip(names, embeds, strict=True), mask, strict=True) if has_it]
            # A file that has changed meanwhile is read again in full by the next run.
            for note in batch.notes:
                if note.unheard or note.is_lost:
                    failed[note.file.path] = note.unheard or note.reason
            notes = (note.file for note in batch.notes)
            earlier |= {note.path: note.texts for note in notes if note.sha256 == files[note.path].sha256}
            first += len(batch.notes)
            bar.update(len(batch.notes))
    for path, reason in failed.items():
        say(f"{path} has no {name}: {reason}")
    vectors = torch.stack([vector for _, vector in found]) if found else torch.zeros(0, gallery.dim or 0)
    writer.add_modality(name, [clip_id for clip_id, _ in found], vectors)
    # Only now: once texts are recorded, no later run checks whether they were embedded.
    writer.put_files([replace(files[path], texts=words) for path, words in earlier.items()])
    writer.commit()
    return len(found)


__all__ = ["add_modality"]
