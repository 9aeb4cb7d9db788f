"""The engines that a gallery is pushed into: the client's own, in memory; the real one, in this process; a server.

The real engine, `qdrant-edge-py`, is what a node of Qdrant runs for each shard, with another interface. Here it has
the methods of `QdrantClient` that are used, one collection each.
"""

import json
import os
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from uuid import UUID

from httpx import Headers
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse
from qdrant_edge import (
    CountRequest,
    Distance,
    EdgeConfig,
    EdgeOptimizersConfig,
    EdgeShard,
    EdgeVectorParams,
    FieldCondition,
    Filter,
    HasIdCondition,
    HnswIndexConfig,
    IsEmptyCondition,
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

_INDEXED = {"has": "keyword", "path": "keyword", "part": "keyword", "seconds": "float", "changed": "integer"}
SERVER = os.environ.get("QDRANT_URL")
KINDS = ["local mode", "real engine", *(["server"] if SERVER else [])]
PLAIN = HnswIndexConfig(m=0, ef_construct=16, full_scan_threshold=10)


def _condition(condition):
    if isinstance(condition, models.Filter):
        return _filter(condition)
    if isinstance(condition, models.IsEmptyCondition):
        return IsEmptyCondition(condition.is_empty.key)
    if isinstance(condition, models.HasIdCondition):
        return HasIdCondition({UUID(str(number)) for number in condition.has_id})
    match = None if condition.match is None else MatchAny(condition.match.any)
    between = condition.range and RangeFloat(**condition.range.model_dump(exclude_none=True))
    return FieldCondition(condition.key, match=match, range=between)


def _filter(where):
    if where is None:
        return None
    parts = {name: [_condition(one) for one in getattr(where, name) or ()] for name in ("must", "must_not", "should")}
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
        kinds = {
            "keyword": PayloadSchemaType.Keyword,
            "float": PayloadSchemaType.Float,
            "integer": PayloadSchemaType.Integer,
        }
        self.shard.update(UpdateOperation.create_field_index(field_name, kinds[field_schema]))

    def get_collection(self, name):
        if self.shard is None:
            raise UnexpectedResponse(404, "Not Found", b"", Headers())
        indexed = self.shard.info().payload_schema
        return SimpleNamespace(config=SimpleNamespace(metadata=self.metadata), payload_schema=indexed)

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


class EdgeServer(ThreadingHTTPServer):
    """
    The real engine of one shard behind the HTTP interface of Qdrant, as far as it is used; not its server, but what
    the client sends and reads is what it sends to one. `fails` holds statuses that the next requests are answered by.
    """

    def __init__(self, folder, key=None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.engine, self.key, self.fails, self.asked, self.lock = EdgeClient(folder), key, [], [], threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.start()

    def start(self):
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,))
        self.thread.start()

    def go_away(self):
        """Answer no more; the engine keeps what it has."""
        self.shutdown()
        self.thread.join()
        self.server_close()

    def come_back(self):
        super().__init__(self.server_address, _Handler)
        self.start()

    def close(self):
        self.go_away()
        self.engine.close()


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def _answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server, path = self.server, self.path.partition("?")[0].split("/")[2:]
        server.asked.append((self.command, "/".join(path[1:])))
        status, result = 200, None
        if server.fails:
            status = server.fails.pop()
        elif server.key is not None and self.headers.get("api-key") != server.key:
            status, result = 401, f"the key {self.headers.get('api-key')} is wrong"
        elif server.engine.shard is None and path[1:] != ["exists"] and self.command != "PUT":
            status, result = 404, f"Not found: Collection `{path[0]}` doesn't exist!"
        else:
            with server.lock:
                result = self._result(path[0], (self.command, *path[1:]), body)
        reported = json.dumps({"result": result, "status": "ok" if status == 200 else {"error": result}, "time": 0.0})
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status == 429:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", str(len(reported)))
        self.end_headers()
        self.wfile.write(reported.encode())

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = _answer

    def _result(self, name, asked, body):
        engine = self.server.engine
        if asked == ("GET", "exists"):
            return {"exists": engine.collection_exists(name)}
        if asked == ("GET",):
            return _info(engine.get_collection(name))
        if asked == ("PUT",):
            wanted = models.CreateCollection.model_validate_json(body)
            engine.create_collection(name, wanted.vectors, wanted.metadata)
        elif asked == ("PATCH",):
            engine.update_collection(name, models.UpdateCollection.model_validate_json(body).metadata)
        elif asked == ("PUT", "index"):
            index = models.CreateFieldIndex.model_validate_json(body)
            engine.create_payload_index(name, index.field_name, index.field_schema.value, True)
            return {"operation_id": 1, "status": "completed"}
        elif asked == ("POST", "points", "count"):
            wanted = models.CountRequest.model_validate_json(body)
            return {"count": engine.count(name, wanted.filter, wanted.exact).count}
        elif asked == ("POST", "points", "scroll"):
            wanted = models.ScrollRequest.model_validate_json(body)
            offset = None if wanted.offset is None else UUID(wanted.offset)
            points, offset = engine.scroll(name, wanted.filter, wanted.limit, offset, wanted.with_payload)
            return {"points": list(map(_record, points)), "next_page_offset": offset and str(offset)}
        elif asked == ("PUT", "points"):
            engine.upsert(name, models.PointsList.model_validate_json(body).points, True)
            return {"operation_id": 1, "status": "completed"}
        elif asked == ("POST", "points", "delete"):
            engine.delete(name, models.PointIdsList.model_validate_json(body), True)
            return {"operation_id": 1, "status": "completed"}
        elif asked == ("POST", "points", "query"):
            wanted = models.QueryRequest.model_validate_json(body)
            options = wanted.using, wanted.filter, wanted.params, wanted.limit, wanted.with_payload
            query = wanted.query if isinstance(wanted.query, list) else wanted.query.nearest
            points = engine.query_points(name, query, *options).points
            return {"points": [_record(point) | {"version": 1, "score": point.score} for point in points]}
        elif asked == ("POST", "points"):
            wanted = models.PointRequest.model_validate_json(body)
            return list(map(_record, engine.retrieve(name, wanted.ids, wanted.with_payload, wanted.with_vector)))
        else:
            raise AssertionError(f"{asked} is not known")
        return True


def _record(point):
    return {"id": str(point.id), "payload": point.payload, "vector": point.vector}


def _info(collection):
    hnsw = models.HnswConfig(m=16, ef_construct=100, full_scan_threshold=10_000)
    optimizers = {"deleted_threshold": 0.2, "vacuum_min_vector_number": 1000, "default_segment_number": 0}
    config = models.CollectionConfig(
        params=models.CollectionParams(),
        hnsw_config=hnsw,
        optimizer_config=models.OptimizersConfig(**optimizers, flush_interval_sec=5),
        metadata=collection.config.metadata,
    )
    indexed = {name: {"data_type": _INDEXED[name], "points": 1} for name in collection.payload_schema}
    info = models.CollectionInfo(
        status="green", optimizer_status="ok", segments_count=1, config=config, payload_schema=indexed
    )
    return info.model_dump(mode="json")
