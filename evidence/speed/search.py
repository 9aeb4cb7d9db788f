"""Time to search a gallery, open it and add to it.

    python -m evidence speed search [--clips 100000] [--dim 512] [--queries 1 --queries 64] [--threads 1]
    python -m evidence speed search --device cuda [--clips 1000000]
    python -m evidence speed search --modalities 1 --modalities 2 [--clips 100000]
    python -m evidence speed search --spaces [--clips 100000]
    python -m evidence speed search --growth 10000 --growth 1000000 [--dim 64]

Searching is a call of `Gallery.search`, reported as a ratio to three plain float32 matrix products over the same
vectors in memory, in blocks. The methods take turns within each round of one process; a ratio is the median over
rounds of CPU time divided by that of the products in the same round. Data are random vectors, which are hardest to
distinguish, or clustered ones, whose spectrum, clusters and common cone are closer to those of embeddings.

Baselines: FAISS' flat search over one modality (`pip install faiss-cpu`); the Gramian volume as published and as
computed here; SCALAR's definition with an explicit centroid for every pair. Slow methods run on a part of the clips,
and their time is extrapolated: it is linear in the number of clips, like that of the products.

With `--modalities`, the same for galleries of these numbers of modalities, each relative to as many matrix products.

With `--spaces`, three modalities in one space of 512 dimensions, in three spaces of 512, 512 and 384 side by side, and
the latter with the zeros written out, each relative to matrix products of its own widths; and bytes on disk a clip.

On a GPU, searching is reported in milliseconds and as a share of memory bandwidth: the vectors' bytes over the time,
divided by the bytes over the time of a sum over as much memory.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import normalize

from evidence.speed.scoring import materialised, stacked_volume
from evidence.speed.settings import SearchConfig
from scalar_retrieval.gallery.exact.ranking import rank
from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter
from scalar_retrieval.gallery.store.places import MANIFEST
from scalar_retrieval.modeling_scalar.modalities_scalar import PAPER_MODALITIES
from scalar_retrieval.modeling_scalar.model_identity import device_of_name
from scalar_retrieval.modeling_scalar.scores_scalar import retrieval_scores, side_by_side

try:
    import faiss
except ImportError:
    faiss = None

ROUNDS = 5
K = 50
BLOCK = 4096  # clips per product of the limit, and of the copying search
IN_MEMORY = 100_000  # clips whose vectors are in memory in float32
OF_SLOW_ONES = 200_000  # pairs for methods that take microseconds per pair


def made_vectors(data: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Unit vectors along the last axis; clustered vectors of a clip are related."""
    vectors = torch.randn(*shape, generator=generator)
    if data == "clustered":
        # Centres and cone are the same for clips and texts, so that texts are near some of the clips.
        fixed = torch.Generator().manual_seed(7)
        spectrum = torch.arange(1, shape[-1] + 1).float().rsqrt()
        centres = torch.randn(200, shape[-1], generator=fixed)
        about = centres[torch.randint(200, (shape[0],), generator=generator)]
        about = 0.6 * about + torch.randn(shape[0], shape[-1], generator=generator)
        # The modalities of a clip have one topic.
        if len(shape) == 3:
            about = about[:, None]
        cone = normalize(torch.randn(shape[-1], generator=fixed), dim=0)
        vectors = normalize((about + 0.9 * vectors) * spectrum, dim=-1) + 0.3 * cone
    return normalize(vectors, dim=-1)


def made_clips(
    count: int, dim: int, generator: torch.Generator, data: str, number: int = 3
) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors of clips with the given number of modalities, and a modality mask as in a mixed archive."""
    embeds = made_vectors(data, (count, number, dim), generator)
    presence = torch.tensor([0.95, 0.85, 0.6])[torch.arange(number) % 3]
    mask = torch.rand(count, number, generator=generator) < presence
    # A clip without any modality has the first.
    mask[:, 0] |= ~mask.any(1)
    return embeds * mask[..., None], mask


def fill(
    folder: Path, count: int, dim: int, dtype: str, batch: int = 16_384, data: str = "random", has_codes: bool = True,
    number: int = 3,
) -> Gallery:  # fmt: skip
    """A gallery of synthetic clips with the given number of modalities."""
    generator = torch.Generator().manual_seed(0)
    modalities = list(PAPER_MODALITIES)
    for place in range(4, number + 1):
        modalities.append(f"text_{place}")
    with GalleryWriter(folder, dtype, has_codes) as writer:
        writer.metadata = {"model": "made", "fingerprint": "0" * 64, "query_temperature": 0.1}
        writer.metadata["modalities"] = modalities[:number]
        for start in range(0, count, batch):
            stop = min(start + batch, count)
            names = [f"clip {number}" for number in range(start, stop)]
            writer.put_clips(names, *made_clips(stop - start, dim, generator, data, number))
            writer.commit()
    return Gallery.open(folder)


def products_of(vectors: list[torch.Tensor], num_queries: int) -> Callable[[torch.Tensor], None]:
    """The lower limit: the products that any score over these modalities needs, in memory that is reused."""
    memory = torch.empty(num_queries * BLOCK)

    def multiply(texts: torch.Tensor) -> None:
        for start in range(0, len(vectors[0]), BLOCK):
            for matrix in vectors:
                block = matrix[start : start + BLOCK]
                torch.mm(
                    texts[:, : block.shape[1]], block.T, out=memory[: num_queries * len(block)].view(num_queries, -1)
                )

    return multiply


def copying_search(texts: torch.Tensor, vectors: list[torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
    """The naive search: stack a block, score it, keep its best."""
    scores = []
    rows = []
    for start in range(0, len(mask), BLOCK):
        part = slice(start, start + BLOCK)
        block = retrieval_scores(texts, torch.stack([matrix[part] for matrix in vectors], dim=1), mask[part])
        best = block.topk(K, dim=1)
        scores.append(best.values)
        rows.append(best.indices + start)
    order = torch.cat(scores, dim=1).topk(K, dim=1).indices
    return torch.cat(rows, dim=1).gather(1, order)


Search = tuple[Callable[[torch.Tensor], object], float]
"""A method, and the share of the clips that it searches."""


def peers_of(vectors: list[torch.Tensor], mask: torch.Tensor, num_queries: int) -> dict[str, Search]:
    """Baselines for the same task, or an easier one."""
    # Slow methods search a part of the clips.
    few = slice(0, max(BLOCK // 8, min(len(mask), OF_SLOW_ONES // num_queries)))
    part = torch.stack([matrix[few] for matrix in vectors], dim=1)
    few_masks = mask[few]
    share = len(part) / len(mask)

    def best_of(scores: torch.Tensor) -> torch.Tensor:
        return scores.topk(min(K, scores.shape[1]), dim=1).indices

    found: dict[str, Search] = {
        "centroids written out": (lambda texts: best_of(materialised(texts, part, few_masks)), share),
        "volume, as published": (lambda texts: best_of(-stacked_volume(texts, part, few_masks)), share),
    }
    if faiss is not None:
        index = faiss.IndexFlatIP(vectors[0].shape[1])
        index.add(vectors[0].numpy())
        found["FAISS flat, one modality"] = (lambda texts: index.search(texts.numpy(), K), 1.0)
    return found


def run_in_turn(methods: dict[str, Search], texts: torch.Tensor) -> dict[str, list[float]]:
    """CPU seconds of each method in each round except the first, extrapolated to all clips."""
    times: dict[str, list[float]] = {}
    for round_number in range(ROUNDS + 1):
        for name, (method, part) in methods.items():
            start = time.process_time()
            method(texts)
            seconds = (time.process_time() - start) / part
            # The first round reads files and computes what is cached.
            if round_number:
                times.setdefault(name, []).append(seconds)
    return times


def ratio_of(values: list[float], floor: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(values, floor, strict=True))


def measure_search(config: SearchConfig, folder: Path) -> None:
    # Only the screened gallery is measured at sizes at which the others would take minutes.
    galleries = {"eight bits, float16": fill(folder / "codes", config.clips, config.dim, "float16", data=config.data)}
    if config.clips <= IN_MEMORY:
        for dtype in ("float16", "float32"):
            galleries[dtype] = fill(folder / dtype, config.clips, config.dim, dtype, data=config.data, has_codes=False)
        embeds = galleries["float32"].modality_embeds()
        mask = galleries["float32"].modality_mask
    else:
        embeds, mask = made_clips(IN_MEMORY, config.dim, torch.Generator().manual_seed(0), config.data)
    vectors = list(embeds.movedim(1, 0).contiguous())
    share = len(mask) / config.clips
    del embeds

    generator = torch.Generator().manual_seed(1)
    for count in config.queries:
        # The products and the peers search what is in memory, the galleries all clips.
        texts = made_vectors(config.data, (count, config.dim), generator)
        methods: dict[str, Search] = {
            "three matrix products": (products_of(vectors, count), share),
            "copying search": (lambda texts: copying_search(texts, vectors, mask), share),
        }
        for name, (run, part) in peers_of(vectors, mask, count).items():
            methods[name] = (run, part * share)
        for name, gallery in galleries.items():
            methods[f"gallery, {name}"] = (partial(gallery.search, k=K), 1.0)
        if "float32" in galleries:
            methods["volume, gallery, float32"] = (partial(galleries["float32"].search, k=K, method="gram"), 1.0)
        times = run_in_turn(methods, texts)

        print(f"{count} queries x {config.clips} clips x {config.dim}, k = {K}, {config.threads} thread(s)")
        floor = times["three matrix products"]
        for name, values in times.items():
            print(f"    {name:28} {statistics.median(values) * 1e3:10.1f} ms   {ratio_of(values, floor):7.2f} x")
        # How many clips the bounds left, and whether the answer is that of the naive search
        for name, gallery in galleries.items():
            found = rank(gallery.searcher.block, texts, K, "scalar")
            scored = found.num_scored.float()
            same = ""
            if name == "float32":
                exact = copying_search(texts, vectors, mask)
                same = f", the same {K} clips as the copying search: {(exact == found.rows).float().mean():.2%}"
            print(f"    {name}: scored in full {scored.median():.0f} clips (median), {scored.max():.0f} (most){same}")


def measure_modalities(config: SearchConfig, folder: Path) -> None:
    """Search galleries with several numbers of modalities, in eight bits and float16."""
    print(f"{config.clips} clips x {config.dim}, k = {K}, {config.threads} thread(s), eight bits and float16")
    print("modalities  queries     products       search     ratio    scored in full (median)")
    for number in config.modalities:
        gallery = fill(folder / str(number), config.clips, config.dim, "float16", data=config.data, number=number)
        # The products are over as much memory at every number of modalities.
        few = min(config.clips, max(IN_MEMORY // number, BLOCK))
        embeds, _ = made_clips(few, config.dim, torch.Generator().manual_seed(0), config.data, number)
        vectors = list(embeds.movedim(1, 0).contiguous())
        for count in config.queries:
            texts = made_vectors(config.data, (count, config.dim), torch.Generator().manual_seed(1))
            methods: dict[str, Search] = {
                "products": (products_of(vectors, count), few / config.clips),
                "search": (partial(gallery.search, k=K), 1.0),
            }
            times = run_in_turn(methods, texts)
            products = statistics.median(times["products"]) * 1e3
            search = statistics.median(times["search"]) * 1e3
            scored = rank(gallery.searcher.block, texts, K, "scalar").num_scored.float().median()
            ratio = ratio_of(times["search"], times["products"])
            print(f"{number:10} {count:8} {products:9.1f} ms {search:9.1f} ms {ratio:7.2f} x {scored:10.0f}")


def made_spaces(
    count: int, slices: list[list[int]], generator: torch.Generator, data: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors of clips whose modalities have slices of a query's components, and a modality mask as in a mixed
    archive."""
    _, mask = made_clips(count, 1, generator, "random", len(slices))
    columns = [made_vectors(data, (count, stop - start), generator) for start, stop in slices]
    return side_by_side(columns, slices) * mask[..., None], mask


def measure_spaces(config: SearchConfig, folder: Path) -> None:
    """Search one space of three modalities, three spaces, and these with their zeros written out, in turns."""
    one = [[0, 512]] * 3
    three = [[0, 512], [512, 1024], [1024, 1408]]
    layouts = {"one space of 512": (one, one), "three of 512, 512, 384": (three, three)}
    layouts["three with their zeros"] = (three, [[0, 1408]] * 3)
    galleries = {}
    products = {}
    print(f"{config.clips} clips, k = {K}, {config.threads} thread(s), eight bits and float16")
    for name, (slices, stored) in layouts.items():
        generator = torch.Generator().manual_seed(0)
        with GalleryWriter(folder / name, "float16") as writer:
            writer.metadata = {"modalities": list(PAPER_MODALITIES), "modality_slices": stored}
            for start in range(0, config.clips, 16_384):
                names = [f"clip {row}" for row in range(start, min(start + 16_384, config.clips))]
                writer.put_clips(names, *made_spaces(len(names), slices, generator, config.data))
            writer.commit()
        galleries[name] = Gallery.open(folder / name)
        size = sum(path.stat().st_size for path in (folder / name / "clips").glob("*.arrow"))
        print(f"    {name:24} {size / config.clips:8,.0f} bytes a clip")
        few = min(config.clips, IN_MEMORY)
        products[name] = [torch.randn(few, stop - start) for start, stop in stored], few / config.clips
    for count in config.queries:
        methods: dict[str, Search] = {}
        asked = {}
        for name, (slices, _) in layouts.items():
            # A query has a part for each space.
            generator = torch.Generator().manual_seed(1)
            parts = {start: made_vectors(config.data, (count, stop - start), generator) for start, stop in slices}
            texts = asked[name] = torch.cat(list(parts.values()), dim=1) / len(parts) ** 0.5
            vectors, share = products[name]
            multiply = products_of(vectors, count)
            methods[f"products, {name}"] = (lambda _, multiply=multiply, texts=texts: multiply(texts), share)
            methods[name] = (lambda _, name=name, texts=texts: galleries[name].search(texts, k=K), 1.0)
        times = run_in_turn(methods, texts)
        print(f"{count} queries")
        for name in layouts:
            scored = rank(galleries[name].searcher.block, asked[name], K, "scalar").num_scored.float().median()
            print(
                f"    {name:24} {statistics.median(times[name]) * 1e3:8.1f} ms, "
                f"{ratio_of(times[name], times[f'products, {name}']):5.2f} x its products, "
                f"{ratio_of(times[name], times['one space of 512']):5.2f} x one space, {scored:.0f} scored in full"
            )


def measure_on_device(config: SearchConfig, folder: Path) -> None:
    """Search a gallery in the memory of a GPU."""
    device = device_of_name(config.device)
    gallery = fill(folder, config.clips, config.dim, "float16", data=config.data, has_codes=False).to(device)
    num_bytes = 2 * 3 * config.clips * config.dim
    memory = torch.empty(num_bytes // 4, device=device)

    def seconds(run: Callable[[], object]) -> float:
        # A call returns before the GPU is done, so each is waited for. The first half only warms up.
        times = []
        for _ in range(2 * ROUNDS):
            torch.accelerator.synchronize(device)
            start = time.perf_counter()
            run()
            torch.accelerator.synchronize(device)
            times.append(time.perf_counter() - start)
        return statistics.median(times[ROUNDS:])

    reading = seconds(lambda: memory.sum())
    print(f"memory is read at {num_bytes / reading / 1e9:.0f} GB/s; {config.clips} clips are {num_bytes / 1e9:.2f} GB")
    generator = torch.Generator().manual_seed(1)
    for count in config.queries:
        texts = made_vectors(config.data, (count, config.dim), generator).to(device)
        passed = seconds(lambda texts=texts: gallery.search(texts, K))
        scored = rank(gallery.searcher.block, texts, K, "scalar").num_scored.float().median()
        share = f"{reading / passed:.0%} of reading the vectors once, {scored:.0f} scored in float64 (median)"
        print(f"    {count:5} queries, k = {K}: {passed * 1e3:8.2f} ms, {share}")


def measure_growth(config: SearchConfig, folder: Path) -> None:
    """Time to add a batch of 8 clips, to open the gallery, and to remove clips, at several sizes."""
    generator = torch.Generator().manual_seed(2)
    print(f"batches of 8 clips x 3 x {config.dim}, float16: {8 * 3 * config.dim * 2} bytes of vectors each")
    for count in config.growth:
        place = folder / str(count)
        start = time.perf_counter()
        fill(place, count, config.dim, "float16", batch=10_000)
        filled = time.perf_counter() - start

        # Many small commits, as from a watched folder
        written = []
        seconds = []
        with GalleryWriter(place) as writer:
            num_files = len(writer.snapshot.shards["clips"])
            for number in range(300):
                clips = made_clips(8, config.dim, generator, config.data)
                writer.put_clips([f"new {number} {row}" for row in range(8)], *clips)
                num_bytes, taken = _commit(writer)
                written.append(num_bytes)
                seconds.append(taken)

        # Opening and searching what they left
        opening = []
        for _ in range(20):
            start = time.perf_counter()
            Gallery.open(place)
            opening.append(time.perf_counter() - start)
        texts = made_vectors(config.data, (1, config.dim), generator)
        searching = _seconds_of_query(place, texts)

        # Removing, which marks rows, and then searching without them
        removals = {}
        for what, rows in (("one clip", [5]), ("half", range(0, count, 2))):
            start = time.perf_counter()
            with GalleryWriter(place) as writer:
                writer.remove_clips([f"clip {row}" for row in rows])
                num_bytes, _ = _commit(writer)
            removals[what] = f"{time.perf_counter() - start:.2f} s and {num_bytes:,} bytes"
        with GalleryWriter(place) as writer:
            writer.compact()
        compacted = _seconds_of_query(place, texts)
        print(
            f"{count:>9} clips: {filled:.1f} s in batches of 10,000, which leave {num_files} files; a commit writes "
            f"{statistics.median(written):,.0f} bytes (median), {sum(written) / len(written):,.0f} (mean), "
            f"{max(written):,} (most), of which the manifest {(place / MANIFEST).stat().st_size:,}; takes "
            f"{statistics.median(seconds) * 1e3:.1f} ms (median); opening takes "
            f"{statistics.median(opening) * 1e3:.1f} ms; one query {searching * 1e3:.1f} ms; removing one clip takes "
            f"{removals['one clip']}, half of them {removals['half']}; then one query takes "
            f"{compacted * 1e3:.1f} ms, compact"
        )


def _commit(writer: GalleryWriter) -> tuple[int, float]:
    """Commit: the bytes that were written, and the seconds it took."""
    before = writer.bytes_written
    start = time.perf_counter()
    writer.commit()
    return writer.bytes_written - before, time.perf_counter() - start


def _seconds_of_query(place: Path, texts: torch.Tensor) -> float:
    """Median time of a search in processor seconds, without the first."""
    gallery = Gallery.open(place)
    times = []
    for _ in range(2 * ROUNDS):
        start = time.process_time()
        gallery.search(texts, K)
        times.append(time.process_time() - start)
    return statistics.median(times[1:])


def main(config: SearchConfig) -> None:
    torch.set_num_threads(config.threads)
    if faiss is not None:
        faiss.omp_set_num_threads(config.threads)
    with tempfile.TemporaryDirectory(dir=config.folder) as folder:
        measure = measure_search
        if config.growth:
            measure = measure_growth
        elif config.modalities:
            measure = measure_modalities
        elif config.spaces:
            measure = measure_spaces
        elif config.device:
            measure = measure_on_device
        measure(config, Path(folder))
