"""The application: /predict, /health and /metrics, with errors as JSON and never a traceback."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

from duogp.serving.batching import Batcher
from duogp.serving.bodies import ARROW_FILE, ARROW_STREAM, JSON, read_body, write_arrow, write_json
from duogp.serving.limits import Limits, RequestError
from duogp.serving.metrics import Metrics
from duogp.serving.model import ServedModel

LOG = logging.getLogger("duogp.serving")
EXTRA = "duogp serve needs starlette and uvicorn: pip install 'duogp[serve]'"
PATHS = {"/predict": "POST", "/health": "GET", "/metrics": "GET"}


def imported(name: str) -> Any:
    """A module of the extra ``serve``; an error that names the extra where it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != name.partition(".")[0]:
            raise
        raise ModuleNotFoundError(EXTRA, name=error.name) from None


class Service:
    """What the handlers share: the model, its queue and its counters."""

    def __init__(self, model: ServedModel, limits: Limits) -> None:
        self.model, self.limits = model, limits
        self.metrics = Metrics()
        self.stopping = False  # still answers, with `Connection: close`
        self.readers: ThreadPoolExecutor | None = None
        self._batcher: Batcher | None = None

    @property
    def batcher(self) -> Batcher:
        assert self._batcher is not None
        return self._batcher

    @asynccontextmanager
    async def running(self, _: Any = None) -> AsyncIterator[None]:
        """Threads and queue, from the start of the application to its end."""
        self.readers = ThreadPoolExecutor(2, "duogp-read")
        self._batcher = Batcher(self.model, self.limits, self.metrics)
        self._batcher.start()
        try:
            yield
        finally:
            await self._batcher.stop()
            self.readers.shutdown()

    async def predict(self, request: Any) -> tuple[bytes, str]:
        """The answer to a request, and its content type."""
        body = await self._body(request)
        kind = request.headers.get("content-type", "")
        levels = parse_qs(request.url.query).get("quantiles", [None])[0]
        loop = asyncio.get_running_loop()

        def read() -> Any:
            asked = read_body(body, kind, self.model.columns, self.limits, levels)
            return self.model.encode(asked.table, asked.levels)

        rows = await loop.run_in_executor(self.readers, read)
        columns = await self.batcher.predict(rows)
        if _wants_arrow(request.headers.get("accept", ""), kind):
            return await loop.run_in_executor(self.readers, write_arrow, columns), ARROW_STREAM
        notes = self.model.notes(rows)
        return await loop.run_in_executor(self.readers, write_json, columns, len(rows), notes), JSON

    async def _body(self, request: Any) -> bytes:
        most = self.limits.bytes
        too_long = RequestError(413, f"the body has more than {most:,} bytes: send fewer rows at once")
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > most:
            raise too_long
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise too_long
                    parts.append(part)
        except TimeoutError:
            raise RequestError(
                408, f"the body did not arrive within {self.limits.seconds:g} seconds"
            ) from None
        if not size:
            raise RequestError(400, "the request has no body")
        return b"".join(parts)

    def health(self) -> dict[str, Any]:
        return {"status": "stopping" if self.stopping else "ok", **self.model.describe()}


def _wants_arrow(accept: str, kind: str) -> bool:
    """Whether the answer is Arrow: asked for, or sent and no other asked for."""
    sent = kind.partition(";")[0].strip().lower() in (ARROW_STREAM, ARROW_FILE)
    return ARROW_STREAM in accept or (sent and JSON not in accept)


def build_app(model: ServedModel, limits: Limits | None = None) -> Any:
    """An ASGI application that answers for a model; `app.state.service` has its counters."""
    applications, responses = imported("starlette.applications"), imported("starlette.responses")
    routing, requests = imported("starlette.routing"), imported("starlette.requests")
    service = Service(model, Limits() if limits is None else limits)

    def answer(content: bytes | str, kind: str, status: int = 200) -> Any:
        return responses.Response(content, status, media_type=kind)

    def error(status: int, message: str) -> Any:
        return answer(json.dumps({"error": message}, ensure_ascii=False), JSON, status)

    async def predict(request: Any) -> Any:
        return answer(*await service.predict(request))

    async def health(_: Any) -> Any:
        return answer(json.dumps(service.health()), JSON, 503 if service.stopping else 200)

    async def metrics(_: Any) -> Any:
        waiting = service.batcher.waiting_rows
        return answer(service.metrics.text(waiting), "text/plain; version=0.0.4; charset=utf-8")

    async def answered(handler: Callable[[Any], Awaitable[Any]], request: Any) -> Any:
        """The answer of a handler; an error becomes a sentence, and its traceback goes to the log."""
        try:
            response = await handler(request)
        except RequestError as refused:
            response = error(refused.status, refused.message)
            if refused.status == 503:
                response.headers["retry-after"] = "1"
        except requests.ClientDisconnect:
            response = error(499, "the client has closed the connection")
        except Exception:
            LOG.exception("a request failed")
            response = error(500, "the model could not answer this request: the log of the service says why")
        return response

    handlers = {"/predict": predict, "/health": health, "/metrics": metrics}

    async def dispatch(request: Any) -> Any:
        path, begun = request.url.path, time.perf_counter()
        service.metrics.in_flight += 1
        try:
            if path not in PATHS:
                response = error(404, f"there is no {path}; there are {', '.join(PATHS)}")
            elif request.method not in (PATHS[path], *(["HEAD"] if PATHS[path] == "GET" else [])):
                response = error(405, f"{path} takes {PATHS[path]}")
                response.headers["allow"] = PATHS[path]
            else:
                response = await answered(handlers[path], request)
        finally:
            service.metrics.in_flight -= 1
        known = path if path in PATHS else "other"
        service.metrics.answered(known, response.status_code, time.perf_counter() - begun)
        if service.stopping:
            response.headers["connection"] = "close"
        return response

    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    route = routing.Route("/{path:path}", dispatch, methods=methods)
    app = applications.Starlette(routes=[route], lifespan=service.running)
    app.state.service = service
    return app
