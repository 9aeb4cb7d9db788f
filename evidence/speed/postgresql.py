"""Time of a query in PostgreSQL, on one server and on three nodes.

    python -m evidence speed postgresql [--clips 100000] [--dim 64] [--queries 5] [--repeats 3]

The servers are those of the tests, on this machine. The list of a query is the statement that scores, counts and
checks every clip; it is compared with its own products: the largest inner product of each modality, over the same
nodes, which is the least that any score costs. A whole query also reads the clips of the list and scores them in
float64. Of each the median time is given, and the processor time of all servers, which do not depend on what else
runs; the three are measured in turns.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import ne
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
import torch

from evidence.speed.search import fill, made_vectors
from evidence.speed.settings import PostgresqlConfig
from scalar_retrieval.gallery.hits import Hit
from scalar_retrieval.gallery.searcher import Scoring, Selection
from scalar_retrieval.modeling_scalar.scores_scalar import ScoreOptions
from scalar_retrieval.search.addresses import TableAddress
from scalar_retrieval.search.postgresql import DatabaseTable, TableSearcher, _Ranking
from scalar_retrieval.search.push import push

if TYPE_CHECKING:
    from tests.search.postgres_servers import PostgresServer

TEMPERATURES = (1e-6, 0.1, 0.3)
K = 10


def processor_seconds(servers: Sequence[PostgresServer]) -> float:
    """The processor time of servers until now: of the processes that are there, and of those that have ended."""
    total = 0.0
    for server in servers:
        postmaster = psutil.Process(int((server.folder / "postmaster.pid").read_text().split()[0]))
        ended = postmaster.cpu_times()
        total += ended.children_user + ended.children_system
        for process in postmaster.children():
            times = process.cpu_times()
            total += times.user + times.system
    return total


@dataclass
class Spent:
    """What queries took of one kind: seconds each, and processor seconds of the servers in sum."""

    seconds: list[float] = field(default_factory=list)
    processor: float = 0.0

    def add(self, servers: Sequence[PostgresServer], ask: Callable[[], object]) -> None:
        """Ask one query, as a user waits for it."""
        before = processor_seconds(servers)
        begun = time.perf_counter()
        ask()
        self.seconds.append(time.perf_counter() - begun)
        self.processor += processor_seconds(servers) - before

    def __str__(self) -> str:
        per_query = self.processor / len(self.seconds)
        return f"{statistics.median(self.seconds) * 1e3:.0f} ms ({per_query * 1e3:.0f} of processors)"

    def times(self, other: Spent) -> str:
        """How many times as much as another one."""
        time = statistics.median(self.seconds) / statistics.median(other.seconds)
        return f"{time:.1f} times ({self.processor / other.processor:.1f})"


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
                running = servers(count)
                databases = [server.new_database() for server in running]
                address = TableAddress.parse(f"{databases[0]}/clips")
                begun = time.perf_counter()
                nodes = []
                if count > 1:
                    nodes = [f"127.0.0.1:{server.port}" for server in running]
                push(gallery, address, nodes)
                rate = config.clips / (time.perf_counter() - begun)
                print(f"{count} nodes, {config.clips:,} clips x 3 x {config.dim}: pushed {rate:,.0f} a second")

                for database in databases:
                    with psycopg.connect(database, autocommit=True) as connection:
                        connection.execute("ANALYZE")  # as the server does itself in a minute or two

                # Queries at several temperatures; the first one of each opens connections.
                searcher = TableSearcher(DatabaseTable(address, 600))
                for temperature in TEMPERATURES:
                    # The table's lists are compared with those of the folder.
                    scoring = Scoring(options={"query_temperature": temperature})
                    found = searcher.rank(texts, K, scoring, Selection())
                    known = gallery.search(texts, K, temperature)
                    wrong = sum(map(ne, map(clip_ids, found), map(clip_ids, known)))
                    products, listed, whole = Spent(), Spent(), Spent()
                    for _ in range(config.repeats):
                        for text in texts:
                            products.add(running, lambda: ask_products(searcher, text))  # noqa: B023
                            listed.add(running, lambda: ask_list(searcher, text, temperature))  # noqa: B023
                            whole.add(running, lambda: searcher.rank(text[None], K, scoring, Selection()))  # noqa: B023
                    print(
                        f"    temperature {temperature:g}: products {products}, list {listed}, "
                        f"{listed.times(products)}, query {whole}; {wrong} of {len(texts)} lists differ from the "
                        "folder's"
                    )
                    sys.stdout.flush()
                searcher.table.close()
    finally:
        servers.close()
