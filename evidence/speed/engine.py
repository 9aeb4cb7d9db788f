"""Length of the candidate lists that a vector engine needs for exact results, and the cost of a query.

    python -m evidence speed engine [--clips 10000 --clips 100000] [--dim 512] [--queries 100]
    python -m evidence speed engine --gallery FOLDER [--gallery FOLDER ...] [--clips 1000]
    python -m evidence speed engine --latency [--clips 10000] [--dim 512]
    python -m evidence speed engine --postgresql [--clips 1000000] [--dim 64] [--workers 0] [--queries 20]
    python -m evidence speed engine --hnsw [--clips 100000] [--dim 64] [--queries 20]

The first computes exact lists in blocks: inner products of all queries with the stored bounds of all clips. The list
of a query has all clips whose bound is not below its k-th best score. The second does this for galleries of one model
together, the first of which has captions; `--clips` is then the number of clips. For comparison, with the same number
of entries: three lists, one per modality, merged by rank (RRF), as in an engine without bounds, and their clips scored
in full.

The third queries the real engine in this process (qdrant-edge-py, as in the tests), or with `--url` any server. The
fourth queries PostgreSQL, one and three test servers. For each temperature it times the list of a query, the whole
query, the same in a folder, and the three inner products of every clip, which are the lower limit. The fifth builds an
HNSW index of the bounds in pgvector and reads it, scoring each clip, until the bound is below the k-th best score. It
reports the time compared with the list of the scan, the rows read, and recall@10 against the exact results.
"""

import math
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import psycopg
import torch
from torch.nn.functional import normalize

from evidence.speed.search import fill, made_clips, made_vectors
from evidence.speed.settings import EngineConfig
from gallery.columns import precision_of, text_embeds_of
from gallery.exact.bounds import bound_vectors, stored_bounds
from gallery.gallery import Gallery
from gallery.hits import Hits, Results
from modeling_scalar.configuration_scalar import MODALITIES
from modeling_scalar.scores_scalar import ScoreOptions

TEMPERATURES = (1e-6, 0.01, 0.05, 0.1, 0.3, math.inf)
DEPTHS = (10, 50)
ENTRIES = (32, 64, 128)
MIN_NORM = 1e-3
RRF = 60
BLOCK = 4096
Blocks = Callable[[], Iterator[tuple[torch.Tensor, torch.Tensor]]]


def scores_of(cosines: torch.Tensor, gram: torch.Tensor, mask: torch.Tensor, temperature: float) -> torch.Tensor:
    """Scores of all pairs by Eq. 4, (Q, B), from cosines (Q, B, 3)."""
    weights = (cosines / temperature).masked_fill(~mask, -math.inf).softmax(-1)
    squares = torch.einsum("qbm,qbn,bmn->qb", weights, weights, gram)
    scores = (weights * cosines).sum(-1) / squares.clamp(min=MIN_NORM**2).sqrt()
    return scores.masked_fill(~mask.any(1), -math.inf)


def lists_of(
    texts: torch.Tensor, blocks: Blocks, dtype: torch.dtype, config: EngineConfig
) -> tuple[torch.Tensor, torch.Tensor, dict]:
    """Bounds (Q, N), cosines (Q, N, 3) with -2 where absent, and the best scores and rows for each temperature."""
    queries = torch.cat([texts, torch.ones(len(texts), 1)], dim=1).to(dtype).float()
    seen = torch.tensor([name not in config.mask for name in MODALITIES])
    bounds, cosines, best, start = [], [], {}, 0
    for embeds, mask in blocks():
        found = bound_vectors(embeds, mask, MIN_NORM, detail=config.detail)
        rows = stored_bounds(found, dtype).float()
        size, sets, width = rows.shape
        products = (queries @ rows.view(-1, width).T).view(len(texts), size, sets)
        left = mask & seen  # a filter of the engine excludes clips without these modalities
        bounds.append(products.masked_fill(~found.is_used | ~left.any(1)[:, None], -math.inf).amax(-1))
        embeds = embeds.to(dtype).float() * mask[..., None]
        here = (texts @ embeds.view(-1, width - 1).T).view(len(texts), size, 3)
        gram = embeds @ embeds.mT
        for temperature in TEMPERATURES:
            scores = scores_of(here, gram, left, temperature)
            values, places = scores.topk(min(max(DEPTHS), size), dim=1)
            old = best.get(temperature, (values[:, :0], places[:, :0]))
            joined = torch.cat([old[0], values], dim=1), torch.cat([old[1], places + start], dim=1)
            order = joined[0].topk(min(max(DEPTHS), joined[0].shape[1]), dim=1).indices
            best[temperature] = tuple(one.gather(1, order) for one in joined)
        cosines.append(here.masked_fill(~left, -2))
        start += size
    return torch.cat(bounds, dim=1), torch.cat(cosines, dim=1), best


def merged_by_rank(lists: torch.Tensor, cosines: torch.Tensor, k: int) -> list[list[int]]:
    """The k best of three lists (Q, 3, L) for each query, by the sum of 1 / (60 + rank)."""
    found = []
    for query, rows in enumerate(lists.tolist()):
        points: dict[int, float] = {}
        for m, line in enumerate(rows):
            for rank, row in enumerate(line, start=1):
                if cosines[query, row, m] > -2:
                    points[row] = points.get(row, 0) + 1 / (RRF + rank)
        found.append(sorted(points, key=points.get, reverse=True)[:k])
    return found


def summary(values: torch.Tensor) -> str:
    """Median, 95th percentile and maximum."""
    return f"{values.median():6.0f} {values.quantile(0.95):6.0f} {values.amax():6.0f}"


def measure_lists(name: str, texts: torch.Tensor, blocks: Blocks, dtype: torch.dtype, config: EngineConfig) -> None:
    bounds, cosines, best = lists_of(texts, blocks, dtype, config)
    about = f"{len(texts)} queries, {dtype}, detail {config.detail}, mask {config.mask}"
    print(f"{name}: {bounds.shape[1]:,} clips, {about}")
    print(f"    entries until the proof closes: median, p95, most{'within 128':>40}")
    for k in DEPTHS:
        for temperature in TEMPERATURES:
            kth = best[temperature][0][:, k - 1 : k]
            length = (bounds >= kth - 1e-6).sum(1).float() + 1  # the last entry must lie below
            print(
                f"    k = {k}, temperature {temperature:<5g}  {summary(length)}{(length <= 128).float().mean():24.1%}"
            )
    print("    recall@10 at temperature 0.1 with as many entries: bounds; three lists by rank, scored in full")
    truth = best[0.1][1][:, :10].tolist()
    for entries in ENTRIES:
        near = bounds.topk(entries, dim=1).indices.tolist()
        lists = cosines.topk(math.ceil(entries / 3), dim=1).indices.transpose(1, 2)  # (Q, 3, L)
        ranked = merged_by_rank(lists, cosines, 10)
        union = [set(line.flatten().tolist()) for line in lists]
        recalls = [
            statistics.mean(len(set(a) & set(b)) / 10 for a, b in zip(truth, one, strict=True))
            for one in (near, ranked, union)
        ]
        print(f"    {entries:4} entries  {recalls[0]:.3f}   {recalls[1]:.3f}  {recalls[2]:.3f}")
    sys.stdout.flush()


def measure_made(config: EngineConfig) -> None:
    dtype = precision_of(config.dtype)
    for count in config.clips:
        texts = made_vectors(config.data, (config.queries, config.dim), torch.Generator().manual_seed(1))

        def blocks(count: int = count) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            generator = torch.Generator().manual_seed(0)
            for start in range(0, count, BLOCK):
                embeds, mask = made_clips(min(BLOCK, count - start), config.dim, generator, config.data)
                yield embeds.to(dtype), mask

        measure_lists(f"{config.data}, {config.dim} dimensions", texts, blocks, dtype, config)


def measure_galleries(config: EngineConfig) -> None:
    galleries = [Gallery.open(folder) for folder in config.gallery]
    if len({gallery.fingerprint for gallery in galleries}) > 1:
        raise ValueError("The galleries must be of the same model.")
    embeds = torch.cat([gallery.modality_embeds() for gallery in galleries])
    mask = torch.cat([gallery.modality_mask for gallery in galleries])
    texts = normalize(text_embeds_of(galleries[0].queries).float(), dim=-1)
    texts = texts[: config.queries]
    for count in config.clips:

        def blocks(count: int = count) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            yield from zip(embeds[:count].split(BLOCK), mask[:count].split(BLOCK), strict=True)

        measure_lists(f"{config.gallery[0]}", texts, blocks, embeds.dtype, config)


def names_of(found: Hits | Results) -> set[str]:
    """The clips found for one query."""
    return {hit.clip_id for hit in (found[0] if isinstance(found, Results) else found)}


def measure_latency(config: EngineConfig, folder: Path) -> None:
    from search.engine.asking import EngineSearcher
    from search.engine.collection import Collection
    from search.engine.push import push

    generator = torch.Generator().manual_seed(1)
    for count in config.clips:
        gallery = fill(folder / str(count), count, config.dim, config.dtype, data=config.data)
        name = f"benchmark-{uuid.uuid4().hex}"
        if config.url is None:
            from qdrant_edge import BinaryQuantizationConfig, ScalarQuantizationConfig, ScalarType

            from tests.search.engines import EdgeClient, EdgeOptimizersConfig, HnswIndexConfig

            kinds = {"int8": ScalarQuantizationConfig(ScalarType.Int8), "binary": BinaryQuantizationConfig()}
            hnsw = HnswIndexConfig(m=16, ef_construct=100, full_scan_threshold=10_000)
            client = EdgeClient(
                folder / name, hnsw, EdgeOptimizersConfig(indexing_threshold=5_000), kinds.get(config.quantization)
            )
        else:
            from qdrant_client import QdrantClient

            client = QdrantClient(url=config.url, timeout=600)
        collection = Collection(client, name)
        begun = time.perf_counter()
        push(gallery, collection, detail=config.detail)
        rate = count / (time.perf_counter() - begun)
        print(f"{count:,} clips x 3 x {config.dim}, {config.dtype}: pushed {rate:.0f} a second")
        if config.url is None:
            client.shard.flush()
            sizes = {"bounds": 0, "vectors": 0, "else": 0}
            for path in (folder / name).rglob("*"):
                storage = next((part for part in path.parts if part.startswith("vector_storage-")), None)
                kind = "else" if storage is None else "bounds" if storage.endswith("bound") else "vectors"
                sizes[kind] += path.stat().st_blocks * 512 if path.is_file() else 0
            print(f"    bytes a clip: {', '.join(f'{kind} {size / count:.0f}' for kind, size in sizes.items())}")
            begun = time.perf_counter()
            client.shard.optimize()
            print(f"    index made in {time.perf_counter() - begun:.0f} s")
        texts = made_vectors(config.data, (config.queries, config.dim), generator)
        asked = EngineSearcher(collection, "engine")
        some = torch.randperm(count, generator=generator)[: config.queries].tolist()
        questions = {
            "texts": [{"queries": text[None]} for text in texts],
            "clips like one": [{"like": gallery.clip_ids[row]} for row in some],
        }
        for kind, questions_of_kind in questions.items():
            known = [names_of(gallery.search(**question)) for question in questions_of_kind]
            for collection.is_exact in (True, False):
                seconds, results = [], []
                for question in questions_of_kind:
                    begun = time.perf_counter()
                    found = asked.search(**question)
                    seconds.append(time.perf_counter() - begun)
                    results.append(found if "like" in question else found[0])
                same = np.mean([len(names_of(a) & b) / 10 for a, b in zip(results, known, strict=True)])
                scored = torch.tensor([one.num_scored for one in results]).float()
                said = Counter(str(one.certainty) for one in results)
                way = "all bounds" if collection.is_exact else "index"
                print(
                    f"    {kind}, {way}: {statistics.median(seconds) * 1e3:.1f} ms (median), "
                    f"{np.quantile(seconds, 0.95) * 1e3:.1f} (p95); {summary(scored)} clips scored; "
                    f"recall@10 {same:.3f}; {dict(said)}"
                )
        if config.url is not None:
            client.delete_collection(name)
        collection.close()
        sys.stdout.flush()


def measure_postgresql(config: EngineConfig, folder: Path) -> None:
    from search.engine.address import parse_tables
    from search.engine.asking import EngineSearcher
    from search.engine.push import push
    from search.engine.table import Table
    from tests.search.postgres_servers import PostgresServers

    os.environ["PGOPTIONS"] = f"-c max_parallel_workers_per_gather={config.workers}"
    servers = PostgresServers()
    try:
        for count in config.clips:
            gallery = fill(folder / str(count), count, config.dim, config.dtype, data=config.data)
            texts = made_vectors(config.data, (config.queries, config.dim), torch.Generator().manual_seed(1))
            known = {t: [names_of(gallery.search(text[None], 10, t)) for text in texts] for t in TEMPERATURES}
            for number in (1, 3):
                databases = [server.new_database() for server in servers(number)]
                table = Table(parse_tables(",".join(f"{database}/clips" for database in databases)))
                begun = time.perf_counter()
                push(gallery, table)
                rate = count / (time.perf_counter() - begun)
                held = sum(rows[0][0] for rows in table._run("SELECT pg_total_relation_size('clips')"))
                print(f"{number} nodes, {count:,} clips x 3 x {config.dim}, {config.dtype}, {config.workers} workers:")
                print(f"    pushed {rate:.0f} a second, {held / count:.0f} bytes a clip")
                kind, one = ("vector", "vector0") if config.dtype == "float32" else ("halfvec", "coarse0")
                products = ", ".join(f"max({name} <#> %({one})s::{kind})" for name in gallery.modalities)
                asked = EngineSearcher(table, "it")

                def alone(text: torch.Tensor, table: Table = table, products: str = products) -> None:
                    values = table.asked(text, [True] * 3, ScoreOptions()).queries[0].values
                    table._run(f"SELECT {products} FROM clips", values)

                for temperature in TEMPERATURES:

                    def scan(text: torch.Tensor, table: Table = table, temperature: float = temperature) -> None:
                        query = table.asked(text, [True] * 3, ScoreOptions(temperature)).queries[0]
                        table.nearest(query, 64, None)

                    wrong = sum(
                        names_of(asked.search(text[None], 10, temperature)) != names
                        for text, names in zip(texts, known[temperature], strict=True)
                    )
                    limit, list_, whole, own = (
                        median_ms(ask, texts)[0]
                        for ask in (
                            alone,
                            scan,
                            lambda text: asked.search(text[None], 10, temperature),  # noqa: B023
                            lambda text: gallery.search(text[None], 10, temperature),  # noqa: B023
                        )
                    )
                    print(
                        f"    temperature {temperature:<5g}: products {limit:.0f} ms, list {list_:.0f} "
                        f"({list_ / limit:.2f} times, {count / list_ / number:.0f} thousand rows a second and node), "
                        f"query {whole:.0f}, folder {own:.0f}; {wrong} of {len(texts)} lists differ"
                    )
                    sys.stdout.flush()
                table.close()
            servers.renew()
    finally:
        servers.close()


def median_ms(ask: Callable[[torch.Tensor], object], texts: torch.Tensor) -> tuple[float, list]:
    """The median time of queries in milliseconds, and their results."""
    seconds, answers = [], []
    for text in texts:
        begun = time.perf_counter()
        answers.append(ask(text))
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds) * 1e3, answers


def copy_bounds(connection: psycopg.Connection, gallery: Gallery, detail: int) -> int:
    """Write the table `bounds`, with a row for each bound of each clip of the table `clips`; return their number."""
    embeds, mask = gallery.modality_embeds(), gallery.modality_mask
    numbers = dict(connection.execute("SELECT clip_id, number FROM clips").fetchall())
    connection.execute(f"CREATE TABLE bounds (clip uuid, bound halfvec({gallery.dim + 1}))")
    head, written = (gallery.dim + 1).to_bytes(2, "big") + b"\0\0", 0
    with connection.cursor().copy("COPY bounds FROM STDIN (FORMAT binary)") as copy:
        copy.set_types(["uuid", "bytea"])  # a vector is sent as its bytes
        for start in range(0, len(gallery), BLOCK):
            found = bound_vectors(embeds[start : start + BLOCK], mask[start : start + BLOCK], MIN_NORM, detail=detail)
            rows = stored_bounds(found, torch.float16).numpy().astype(">f2")
            for clip, place in found.is_used.nonzero().tolist():
                copy.write_row((numbers[gallery.clip_ids[start + clip]], head + rows[clip, place].tobytes()))
                written += 1
    return written


def read_bounds(
    connection: psycopg.Connection, modalities: Sequence[str], text: torch.Tensor, k: int, temperature: float
) -> tuple[set[str], int, int]:
    """The k best clips when the index is read until no remaining bound reaches them, the rows read and the clips
    scored."""
    vector = f"[{','.join(map(str, text.half().tolist()))}]"
    products = ", ".join(f"-({name} <#> '{vector}')" for name in modalities)
    nearest = f"bound <#> '{vector[:-1]},1]'"
    statement = f"SELECT clip_id, -({nearest}), scalar_score(ARRAY[{products}], _gram, '{temperature}')"
    scores, rows = {}, 0
    with connection.transaction(), connection.cursor("found") as found:
        found.execute(f"{statement} FROM bounds JOIN clips ON clip = number ORDER BY {nearest}")
        while lines := found.fetchmany(ENTRIES[0]):
            for clip_id, bound, score in lines:
                rows += 1
                scores[clip_id] = score
                best = sorted(scores, key=scores.get, reverse=True)[:k] if rows % k == 0 else []
                if len(best) == k and bound < scores[best[-1]]:
                    return set(best), rows, len(scores)
    return set(sorted(scores, key=scores.get, reverse=True)[:k]), rows, len(scores)


def measure_hnsw(config: EngineConfig, folder: Path) -> None:
    from search.engine.address import parse_tables
    from search.engine.push import push
    from search.engine.scoring import FUNCTION
    from search.engine.table import Table
    from tests.search.postgres_servers import PostgresServers

    os.environ["PGOPTIONS"] = "-c max_parallel_workers_per_gather=0 -c max_parallel_maintenance_workers=0"
    servers = PostgresServers()
    try:
        for count in config.clips:
            gallery = fill(folder / str(count), count, config.dim, "float16", data=config.data)
            texts = made_vectors(config.data, (config.queries, config.dim), torch.Generator().manual_seed(1))
            database = servers(1)[0].new_database()
            table = Table(parse_tables(f"{database}/clips"))
            push(gallery, table)
            with psycopg.connect(database, autocommit=True) as connection:
                connection.execute(FUNCTION)
                written = copy_bounds(connection, gallery, config.detail)
                begun = time.perf_counter()
                connection.execute("SET maintenance_work_mem = '2GB'")
                connection.execute(
                    "CREATE INDEX near ON bounds USING hnsw (bound halfvec_ip_ops) WITH (m = 16, ef_construction = 64)"
                )
                seconds = time.perf_counter() - begun
                connection.execute("ANALYZE")
                sizes = "pg_total_relation_size('clips'), pg_table_size('bounds'), pg_relation_size('near')"
                clips, bounds, index = (size / count for size in connection.execute(f"SELECT {sizes}").fetchone())
                print(f"{count:,} clips x 3 x {config.dim}: {written:,} bounds, index made in {seconds:.0f} s")
                print(f"    bytes a clip: clips {clips:.0f}, bounds {bounds:.0f}, their index {index:.0f}")
                # No limit on the rows read, and no sorting by the planner.
                connection.execute(
                    "SET hnsw.iterative_scan = strict_order; SET hnsw.max_scan_tuples = 2000000000; "
                    "SET hnsw.scan_mem_multiplier = 50; SET jit = off; "
                    "SET enable_sort = off; SET enable_hashjoin = off; SET enable_mergejoin = off"
                )
                for temperature in TEMPERATURES:
                    known = [names_of(gallery.search(text[None], 10, temperature)) for text in texts]

                    def scan(text: torch.Tensor, table: Table = table, temperature: float = temperature) -> None:
                        query = table.asked(text, [True] * 3, ScoreOptions(temperature)).queries[0]
                        table.nearest(query, 64, None)

                    print(f"    temperature {temperature:<5g}: list of the scan {median_ms(scan, texts)[0]:.1f} ms")
                    for effort in (40, 200, 1000):
                        connection.execute(f"SET hnsw.ef_search = {effort}")
                        taken, found = median_ms(
                            lambda text: read_bounds(connection, gallery.modalities, text, 10, temperature),  # noqa: B023
                            texts,
                        )
                        same = np.mean([len(names & one[0]) / 10 for names, one in zip(known, found, strict=True)])
                        rows, scored = (torch.tensor([one[place] for one in found]).float() for place in (1, 2))
                        print(
                            f"        ef_search {effort}: {taken:.1f} ms; rows read {summary(rows)}; clips scored "
                            f"{summary(scored)}; recall@10 {same:.3f}"
                        )
                    sys.stdout.flush()
            table.close()
            servers.renew()
    finally:
        servers.close()


def main(config: EngineConfig) -> None:
    torch.set_num_threads(config.threads)
    if config.gallery:
        measure_galleries(config)
    elif config.postgresql:
        with tempfile.TemporaryDirectory() as folder:
            measure_postgresql(config, Path(folder))
    elif config.hnsw:
        with tempfile.TemporaryDirectory() as folder:
            measure_hnsw(config, Path(folder))
    elif config.latency:
        with tempfile.TemporaryDirectory() as folder:
            measure_latency(config, Path(folder))
    else:
        measure_made(config)
