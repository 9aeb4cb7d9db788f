"""The engines that a gallery is pushed into: the client's own, in memory; the real one, in this process; a server.

The real engine, `qdrant-edge-py`, is what a node of Qdrant runs for each shard, with another interface. Here it has
the methods of `QdrantClient` that are used, one collection each.
"""

import os
import warnings
from types import SimpleNamespace

from qdrant_client import QdrantClient, models
from qdrant_edge import (
    CountRequest,
    Distance,
    EdgeConfig,
    EdgeOptimizersConfig,
    EdgeShard,
    EdgeVectorParams,
    FieldCondition,
    Filter,
    HnswIndexConfig,
    MatchAny,
    MultiVectorComparator,
    MultiVectorConfig,
    PayloadSchemaType,
    Point,
    QuantizationSearchParams,
    Query,
    QueryRequest,
    RangeFloat,
    ScrollRequest,
    SearchParams,
    UpdateOperation,
    VectorStorageDatatype,
)

SERVER = os.environ.get("QDRANT_URL")
KINDS = ["local mode", "real engine", *(["server"] if SERVER else [])]
PLAIN = HnswIndexConfig(m=0, ef_construct=16, full_scan_threshold=10)


def _condition(condition):
    match = None if condition.match is None else MatchAny(condition.match.any)
    between = condition.range and RangeFloat(**condition.range.model_dump(exclude_none=True))
    return FieldCondition(condition.key, match=match, range=between)


def _filter(where):
    if where is None:
        return None
    parts = {name: [_condition(one) for one in getattr(where, name) or ()] for name in ("must", "must_not")}
    return Filter(**{name: conditions for name, conditions in parts.items() if conditions})


class EdgeClient:
    """The engine of one shard; `hnsw`, `optimizers` and `quantization` are settings, for tests of its index."""

    def __init__(self, folder, hnsw=None, optimizers=None, quantization=None):
        self.folder, self.shard, self.metadata, self.quantization = folder, None, None, quantization
        self.hnsw, self.optimizers = hnsw, optimizers or EdgeOptimizersConfig()

    def close(self):
        if self.shard is not None:
            self.shard.close()

    def collection_exists(self, name):
        return self.shard is not None

    def create_collection(self, name, vectors, metadata, **options):
        datatypes = {"float16": VectorStorageDatatype.Float16, "float32": VectorStorageDatatype.Float32}

        def params(config):
            assert config.distance == models.Distance.DOT
            many = config.multivector_config and MultiVectorConfig(MultiVectorComparator.MaxSim)
            return EdgeVectorParams(
                config.size,
                Distance.Dot,
                multivector_config=many,
                datatype=datatypes[config.datatype.value],
                hnsw_config=self.hnsw if many else PLAIN,
                quantization_config=self.quantization if many else None,
            )

        config = EdgeConfig(
            {name: params(vector) for name, vector in vectors.items()}, optimizers=self.optimizers, wal_enabled=False
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.shard, self.metadata = EdgeShard.create(str(self.folder), config), metadata

    def delete_collection(self, name):
        self.shard = None

    def create_payload_index(self, name, field_name, field_schema, wait):
        kinds = {"keyword": PayloadSchemaType.Keyword, "float": PayloadSchemaType.Float}
        self.shard.update(UpdateOperation.create_field_index(field_name, kinds[field_schema]))

    def get_collection(self, name):
        return SimpleNamespace(config=SimpleNamespace(metadata=self.metadata))

    def update_collection(self, name, metadata):
        self.metadata = self.metadata | metadata

    def count(self, name, count_filter, exact):
        return SimpleNamespace(count=self.shard.count(CountRequest(exact, _filter(count_filter))))

    def scroll(self, name, scroll_filter, limit, offset, with_payload):
        return self.shard.scroll(ScrollRequest(offset, limit, _filter(scroll_filter), with_payload, False))

    def upsert(self, name, points, wait):
        points = [Point(point.id, point.vector, point.payload) for point in points]
        self.shard.update(UpdateOperation.upsert_points(points))

    def delete(self, name, selector, wait):
        self.shard.update(UpdateOperation.delete_points(selector.points))

    def query_points(self, name, query, using, query_filter, search_params, limit, with_payload):
        request = QueryRequest(
            limit,
            query=Query.Nearest(query, using),
            filter=_filter(query_filter),
            params=SearchParams(
                exact=search_params.exact,
                hnsw_ef=search_params.hnsw_ef,
                quantization=QuantizationSearchParams(
                    ignore=bool(search_params.quantization.ignore),
                    rescore=search_params.quantization.rescore,
                    oversampling=search_params.quantization.oversampling,
                ),
            ),
            with_payload=with_payload,
        )
        return SimpleNamespace(points=self.shard.query(request))

    def retrieve(self, name, ids, with_payload, with_vectors):
        return self.shard.retrieve(ids, with_payload, with_vectors)


def make_client(kind, folder):
    """A client of an engine that holds nothing yet, but for a server, of which collections must be removed."""
    if kind == "server":
        return QdrantClient(url=SERVER, api_key=os.environ.get("QDRANT_API_KEY"), timeout=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return QdrantClient(":memory:") if kind == "local mode" else EdgeClient(folder)
