"""Time of a query in PostgreSQL, on one server and on three nodes.

    python -m evidence speed postgresql [--clips 100000] [--dim 64] [--queries 5]

The servers are those of the tests, on this machine. The list of a query is the statement that scores, counts and
checks every clip; it is compared with its own products: the largest inner product of each modality, over the same
nodes, which is the least that any score costs. A whole query also reads the clips of the list and scores them in
float64.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from operator import ne
from pathlib import Path

import torch

from evidence.speed.search import fill, made_vectors
from evidence.speed.settings import PostgresqlConfig
from scalar_retrieval.gallery.hits import Hit
from scalar_retrieval.gallery.searcher import Scoring, Selection
from scalar_retrieval.modeling_scalar.scores_scalar import ScoreOptions
from scalar_retrieval.search.addresses import TableAddress
from scalar_retrieval.search.postgresql import DatabaseTable, TableSearcher, _Ranking
from scalar_retrieval.search.push import push

TEMPERATURES = (1e-6, 0.1, 0.3)
K = 10


def median_ms(ask: Callable[[torch.Tensor], object], texts: torch.Tensor) -> float:
    """The median time of queries in milliseconds."""
    # One query at a time, as a user waits for it.
    seconds = []
    for text in texts:
        begun = time.perf_counter()
        ask(text)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds) * 1e3


def ask_products(searcher: TableSearcher, text: torch.Tensor) -> None:
    """Compute the inner products of every clip, and nothing else."""
    vector = f"[{','.join(map(str, text.tolist()))}]"
    product = "max({{vector}}.inner_product({name}, %(query)s::{{vector}}.halfvec))"
    products = ", ".join(product.format(name=name) for name in searcher.pushed.modalities)
    statement = f"SELECT _node, {products} FROM {{table}} GROUP BY _node"
    with searcher.table.transaction() as connection:
        searcher.table.run(connection, statement, {"query": vector})


def ask_list(searcher: TableSearcher, text: torch.Tensor, temperature: float) -> None:
    """Run the one statement of a query."""
    with searcher.table.transaction() as connection:
        _Ranking(searcher, connection, ScoreOptions(temperature), Selection()).bounds(text, K + 16)


def clip_ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.clip_id for hit in hits]


def main(config: PostgresqlConfig) -> None:
    from tests.search.postgres_servers import PostgresServers

    torch.set_num_threads(1)
    servers = PostgresServers()
    try:
        with tempfile.TemporaryDirectory() as folder:
            gallery = fill(Path(folder), config.clips, config.dim, "float16", data="clustered")
            texts = made_vectors("clustered", (config.queries, config.dim), torch.Generator().manual_seed(1))
            # One server, then three that share the clips.
            for count in (1, 3):
                servers.renew()
                databases = [server.new_database() for server in servers(count)]
                address = TableAddress.parse(f"{databases[0]}/clips")
                begun = time.perf_counter()
                nodes = []
                if count > 1:
                    nodes = [f"127.0.0.1:{server.port}" for server in servers(count)]
                push(gallery, address, nodes)
                rate = config.clips / (time.perf_counter() - begun)
                print(f"{count} nodes, {config.clips:,} clips x 3 x {config.dim}: pushed {rate:,.0f} a second")

                # The least that any score costs, then queries at several temperatures.
                searcher = TableSearcher(DatabaseTable(address, 600))
                ask_products(searcher, texts[0])
                products = median_ms(lambda text: ask_products(searcher, text), texts)  # noqa: B023
                for temperature in TEMPERATURES:
                    # The table's lists are compared with those of the folder.
                    scoring = Scoring(options={"query_temperature": temperature})
                    found = searcher.rank(texts, K, scoring, Selection())
                    known = gallery.search(texts, K, temperature)
                    wrong = sum(map(ne, map(clip_ids, found), map(clip_ids, known)))
                    of_list = median_ms(lambda text: ask_list(searcher, text, temperature), texts)  # noqa: B023
                    whole = median_ms(
                        lambda text: searcher.rank(text[None], K, scoring, Selection()),  # noqa: B023
                        texts,
                    )
                    print(
                        f"    temperature {temperature:g}: products {products:.0f} ms, list {of_list:.0f} "
                        f"({of_list / products:.1f} times), query {whole:.0f}; {wrong} of {len(texts)} lists differ "
                        "from the folder's"
                    )
                    sys.stdout.flush()
                searcher.table.close()
    finally:
        servers.close()
