"""The panel on this machine: its page over HTTP on 127.0.0.1, and what can be asked live.

Only who has the address may ask: it has a random token in it.  Requests that name another host, or come from another
page, are refused; bodies are small; what is served are the files that were written for it, by their names, and nothing
is looked up on the disk by what a request says.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from analysis.shared.behaviours import NAMES, check_names
from core import artefacts
from core.contracts import UserError
from core.directions import fingerprint
from generative.load import load_simulator
from validation.panel.contents import Options, bases_in, together
from validation.panel.live import Live, live_of
from validation.panel.page import DATA, PAGE
from validation.panel.work import Full, Worker
from validation.report.lineage import Chosen, check_unchanged

HOST = "127.0.0.1"
LARGEST = 16_384  # bytes of a request's body
HEADERS = {
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store",
}  # fmt: skip


@dataclass
class Served:
    """What the panel serves: files by their names, and the live worker."""

    files: Mapping[str, Path]  # none until the page is written
    token: str
    port: int
    live: Live | None = None
    worker: Worker | None = None
    names: Path | None = None  # the behaviours run whose names may be edited
    names_of: str = ""  # SHA-256 of its manifest, as it was when the page was written
    loading: str = ""  # what is not there yet, in words


def files_in(directory: Path) -> dict[str, Path]:
    """The page and its parts, by the names under which they are asked for."""
    out = {"": directory / PAGE, PAGE: directory / PAGE}
    parts = (directory / DATA).iterdir() if (directory / DATA).exists() else ()  # a page of a single file has none
    return out | {f"{DATA}/{p.name}": p for p in parts if p.is_file() and not p.is_symlink()}


def refusal(host: str, origin: str, path: str, served: Served) -> int:
    """0, or the status with which a request is refused.  origin: '' where it names none."""
    hosts = {f"{HOST}:{served.port}", f"localhost:{served.port}"}
    if host not in hosts:
        return 421
    if origin and origin not in {f"http://{h}" for h in hosts}:
        return 403
    return 0 if hmac.compare_digest(path.strip("/").partition("/")[0].encode(), served.token.encode()) else 404


def app_of(served: Served) -> Any:
    """The application."""
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response

    async def body_of(request: Request) -> Any:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise UserError("send JSON")
        data = b""
        async for part in request.stream():
            data += part
            if len(data) > LARGEST:
                raise UserError(f"more than {LARGEST} bytes")
        try:
            values = json.loads(data)
            json.dumps(values, ensure_ascii=False).encode()  # half a surrogate pair cannot be said back
        except (ValueError, RecursionError):
            raise UserError("not JSON") from None
        if not isinstance(values, dict):
            raise UserError("send an object")
        return values

    async def reply(request: Request) -> Response:
        name = request.url.path.strip("/").partition("/")[2]
        shown = request.method in ("GET", "HEAD")
        if shown and name in served.files:
            kind = "text/javascript" if name.endswith(".js") else "text/html"
            return FileResponse(served.files[name], media_type=kind)
        if shown and name == "" and served.loading:
            return HTMLResponse(loading_page(served.loading))
        if request.method == "POST" and name == "names" and served.names is not None:
            return JSONResponse(put_names(served.names, served.names_of, await body_of(request)))
        if (served.live is None or served.worker is None) and served.loading:
            return JSONResponse({"error": served.loading, "loading": True}, 503)
        if served.live is None or served.worker is None:
            return JSONResponse({"error": "nothing is live here"}, 404)
        if request.method == "GET" and name == "live":
            return JSONResponse(served.live.facts())
        if request.method == "POST" and name == "live":
            values = await body_of(request)
            return JSONResponse(served.worker.ask(values).told(), 202)
        _, _, number = name.partition("live/")
        if number.isascii() and number.isdigit() and len(number) < 10 and name == f"live/{number}":
            find = {"GET": served.worker.job, "DELETE": served.worker.cancel}.get(request.method)
            job = find(int(number)) if find else None
            if job is not None:
                return JSONResponse(job.told())
        return JSONResponse({"error": "no such thing"}, 404)

    async def guarded(request: Request) -> Response:
        heads = request.headers
        status = refusal(heads.get("host", ""), heads.get("origin", ""), request.url.path, served)
        if status:
            return Response("", status)
        try:
            answer = await reply(request)
        except ClientDisconnect:
            answer = Response("", 400)
        except Full:
            answer = JSONResponse({"error": "too much is waiting; try again"}, 429)
        except UserError as error:
            answer = JSONResponse({"error": str(error)}, 400)
        answer.headers.update(HEADERS)
        return answer

    app = Starlette()
    handler: Callable[[Request], Awaitable[Response]] = guarded
    app.add_route("/{path:path}", handler, methods=["GET", "POST", "DELETE"])
    return app


def put_names(path: Path, made: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Write a behaviours run's names; UserError where they are not one line of text for every behaviour, or where the
    run is no longer the one (SHA-256 of its manifest) that the page was made of: its behaviours have other numbers."""
    if artefacts.manifest_sha256(path) != made:
        raise UserError("the behaviours were fitted again since this page was made; serve it again")
    names = values.get("names")
    check_names(names, int(artefacts.load_json(path, "result.json")["notes"]["behaviours"]), NAMES)
    artefacts.write_json(path / NAMES, names)
    return {"saved": True}


def loading_page(words: str) -> str:
    """What stands at the address until the page is written; the browser asks again every second."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="1">'
        f"<title>Panel</title></head><body><p>Loading: {escape(words)} &hellip;</p></body></html>"
    )


class Loader(threading.Thread):
    """Writes the page and plays the starts of what is live, while the server says how far it is."""

    def __init__(
        self, served: Served, directory: Path, write_panel: Callable[[Path, Callable[[], bool]], int],
        make_live: Callable[[], Live] | None, done: Callable[[], None],
    ) -> None:  # fmt: skip
        """write_panel: writes the page until it is told to stop; make_live: None where nothing is to be live; done: is
        called where nothing more comes because of ``failed``."""
        super().__init__(name="panel-loader", daemon=True)
        self.served, self.directory = served, directory
        self._write_panel, self._make_live, self._done = write_panel, make_live, done
        self._stop_asked = threading.Event()
        self.failed: Exception | None = None
        served.loading = "the page is being written"

    def run(self) -> None:
        began = time.monotonic()
        try:
            self._write_panel(self.directory, self._stop_asked.is_set)
            if self._stop_asked.is_set():
                return
            self.served.files = files_in(self.directory)
            if self._make_live is not None:
                self.served.loading = "starts are being played in the real world"
                self.served.live = self._make_live()
                self.served.worker = Worker(self.served.live.answer)
            self.served.loading = ""
            print(f"panel: everything is loaded, after {time.monotonic() - began:.0f} s", flush=True)
        except Exception as error:  # raised again where the server ran
            self.failed = error
            self._done()

    def stop(self) -> None:
        """End with the part that is being made."""
        self._stop_asked.set()
        self.join()
        if self.served.worker is not None:
            self.served.worker.close()
        if self.served.live is not None:
            self.served.live.close()


def serve(
    config: Any, options: Options, chosen: Chosen | None, write_panel: Callable[[Path, Callable[[], bool]], int]
) -> None:
    """Say the address, write the page into a directory that goes when this ends, and show it until Ctrl-C.  Raises what
    went wrong with the page or what is live.  chosen: None for studies alone, in which nothing is live."""
    with tempfile.TemporaryDirectory(prefix="dreamlens-panel-") as name, listening(config.port) as sock:
        runs = {} if chosen is None else together(chosen)[0]
        names = runs.get("behaviours")
        made = "" if names is None else artefacts.manifest_sha256(names)
        served = Served({}, secrets.token_urlsafe(24), sock.getsockname()[1], names=names, names_of=made)
        server = server_of(served)
        make_live = None
        if config.starts and chosen is not None and chosen.simulator is not None:

            def make_live() -> Live:
                return live_from(chosen, runs["directions"], options, config.starts, config.seed, config.threads)

        loader = Loader(served, Path(name), write_panel, make_live, lambda: setattr(server, "should_exit", True))
        print(f"panel: http://{HOST}:{served.port}/{served.token}/  (Ctrl-C ends it)", flush=True)
        loader.start()
        try:
            server.run(sockets=[sock])
        finally:
            loader.stop()
        if loader.failed is not None:
            raise loader.failed


def live_from(
    chosen: Chosen, fitted: Path | None, options: Options, starts: int, seed: int, threads: int
) -> Live:  # fmt: skip
    """What is live of these runs.  fitted: the run of the directions, if there is one."""
    assert chosen.simulator is not None
    simulator = load_simulator(chosen.simulator)
    bases = {} if fitted is None else bases_in(fitted, options.basis_kind, fingerprint(simulator.agent))
    check_unchanged(chosen.runs)
    return live_of(simulator, bases, starts, seed, threads)


def listening(port: int) -> socket.socket:
    """A socket on 127.0.0.1; UserError where the port is taken."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((HOST, port))
        sock.listen()  # who follows the address before the server runs waits for it
    except (OSError, OverflowError) as error:
        sock.close()
        raise UserError(f"--port {port}: cannot be taken ({error}); give another, or 0 for any") from None
    return sock


def server_of(served: Served) -> Any:
    """The server, to be run on a socket."""
    import uvicorn

    return uvicorn.Server(uvicorn.Config(
        app_of(served), log_level="warning", access_log=False, server_header=False, limit_concurrency=32,
        timeout_keep_alive=5, lifespan="off", ws="none",
        log_config=None,  # uvicorn's own closes the handlers of every other library of the process
    ))  # fmt: skip
