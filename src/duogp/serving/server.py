"""The process that serves: loopback unless another address is given, and an end that loses nothing.

On SIGTERM or an interrupt /health begins to say "stopping", and answers ask clients to close their
connections; after ``drain`` seconds no more connections are taken; what was received is answered; then the
process ends with status 0. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from duogp.serving.app import build_app, imported
from duogp.serving.limits import Limits
from duogp.serving.model import ServedModel


def serve(
    model: ServedModel,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    drain: float = 0.5,
    announce: Any = None,
) -> None:
    """Answer requests until a signal ends it; ``announce(address)`` is called when it can be reached.

    ``port=0``: a free one.
    """
    uvicorn = imported("uvicorn")
    app = build_app(model, limits)
    config = uvicorn.Config(
        app, host=host, port=port, log_level="warning", access_log=False, lifespan="on", server_header=False
    )
    server = _server_class(uvicorn)(config, app.state.service, drain, announce)
    asyncio.run(server.serve())


def _server_class(uvicorn: Any) -> Any:
    class Server(uvicorn.Server):
        def __init__(self, config: Any, service: Any, drain: float, announce: Any) -> None:
            super().__init__(config)
            self.service, self.drain, self.announce = service, drain, announce

        async def startup(self, *args: Any, **options: Any) -> None:
            self.loop = asyncio.get_running_loop()
            await super().startup(*args, **options)
            if self.started and self.announce is not None:
                address, port = self.servers[0].sockets[0].getsockname()[:2]
                host = f"[{address}]" if ":" in address else address
                self.announce(f"http://{host}:{port}")

        def handle_exit(self, sig: int, frame: Any) -> None:
            if self.service.stopping:
                self.should_exit = self.force_exit = True
                return
            self.service.stopping = True
            wait = self.drain if sig == signal.SIGTERM else 0.0
            self.loop.call_soon_threadsafe(self.loop.call_later, wait, self._finish)

        def _finish(self) -> None:
            self.should_exit = True

    return Server
