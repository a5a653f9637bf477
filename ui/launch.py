"""`python app.py`: arguments, then the page.

Contract: bound to 127.0.0.1 unless asked otherwise; no request leaves the machine; a public link needs a password. The page is up before
torch is: the engine is imported in the background, once the server answers.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path
from time import sleep
from typing import Any

from polestar.arguments import Parser

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The arguments; leaves with one sentence when they do not fit together."""
    p = Parser(prog="app.py", description="A visual debugger for the decoding of diffusion language models.")
    p.add_argument("--model", default="demo", help="a name or a folder with config.json and safetensors (default: bundled)")
    p.add_argument("--trace", metavar="FILE", help="open a saved trace")
    p.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine only)")
    p.add_argument("--port", type=_port, default=7860, help="port to listen on; 0 takes a free one (default 7860)")
    p.add_argument("--share", action="store_true", help="also make a temporary public link; needs --auth")
    p.add_argument("--auth", metavar="USER:PASSWORD", help="ask for this name and password")
    p.add_argument("--device", help="cpu or cuda (default: what the machine has)")
    p.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="number format of the model")
    p.add_argument("--quantize", choices=("8bit", "4bit"), help="hold the model's projections in 8 or 4 bits (needs bitsandbytes)")
    p.add_argument("--graphs", action="store_true", help="record passes within a block as CUDA graphs (needs a CUDA GPU; never run on one so far)")
    p.add_argument("--threads", type=int, help="CPU threads of the engine (default: 1 for a model below 30 M parameters, else one for each core)")
    args = p.parse_args(argv)
    if args.threads is not None and args.threads < 1:
        p.error(f"--threads takes a whole number of at least 1, not {args.threads}; give one, or leave --threads out")
    if args.auth is not None and not all(args.auth.partition(":")[::2]):
        p.error(f"--auth takes USER:PASSWORD, not {args.auth!r}; give both, with a colon between")
    if args.share and not args.auth:
        p.error("--share makes the page public and needs --auth USER:PASSWORD; add it, or leave --share out")
    if not _is_here(args.host):
        p.error(f"--host takes an address of this machine, such as 127.0.0.1 or 0.0.0.0, not {args.host!r}; give one of those")
    if args.trace is not None:
        if not Path(args.trace).is_file():
            p.error(f"--trace {args.trace!r} is not a file; give the path of a saved trace")
        from polestar.trace import TraceError, load

        try:
            load(args.trace)
        except TraceError as error:
            p.error(f"--trace: {error}")
    return args


def _port(text: str) -> int:
    """An argparse type: a port, or 0."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"takes a whole number from 0 to 65535, not {text}; give one of those")
    return int(text)


def _is_here(host: str) -> bool:
    """Can this machine listen on the address?"""
    import socket

    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.removeprefix("[").removesuffix("]"), 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as s:
            s.bind(address)
    except (OSError, UnicodeError):
        return False
    return True


def unknown_model(name: str, names: list[str]) -> str:
    """One sentence when `name` is neither one of `names` nor a model's folder, else "". Whether its files are here is seen at the first run."""
    if name.lower() in (n.lower() for n in names):
        return ""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return "" if (folder / "config.json").is_file() else f"--model: the folder {name!r} holds no config.json; give the folder of a model"
    from polestar.models import registry  # imports torch, so only for names that the tables do not have

    try:
        known = registry.find(name) is not None
    except ValueError as error:
        return f"--model: {error}"
    return "" if known else f"--model: there is no model {name!r} and no such folder; choose one of {', '.join(names)}, or give a folder"


def main(argv: list[str] | None = None) -> int:
    """Serve until interrupted."""
    args = parse(argv)
    from .engine import Engine

    page = serve(Engine(args.device, args.dtype, args.quantize, args.threads, graphs=args.graphs), args)
    try:
        page.block_thread()
    except KeyboardInterrupt:
        pass
    finally:
        page.close(verbose=False)
    return 0


def serve(engine: Any, args: argparse.Namespace) -> Any:
    """Build and launch the page with an engine; returns the running Blocks. Raises SystemExit when the port is taken or there is no such model."""
    from . import tables as tables_

    reading = tables_.begin()
    from .quick_import import quicken

    quicken()
    import gradio as gr

    from .controls import marks_css
    from .layout import lay_out
    from .quiet import Quiet
    from .server import Server
    from .static import ASSETS, routes
    from .theme import make_theme
    from .wiring import wire

    tables = tables_.get(reading)
    names = [name for name, _ in tables.models]
    if problem := unknown_model(args.model, names):
        print(f"app.py: error: {problem}", file=sys.stderr)
        raise SystemExit(2)
    server = Server(engine, trace=args.trace)
    with gr.Blocks(title="Polestar", analytics_enabled=False, fill_width=True) as page:
        wire(page, tables, lay_out(tables, args.model, names), server)
    page.queue(default_concurrency_limit=None, api_open=False)
    server.quiet = Quiet(page._queue)
    try:
        _, url, public = page.launch(
            server_name=args.host, server_port=args.port or _free_port(args.host), share=args.share, quiet=True, prevent_thread_lock=True,
            auth=tuple(args.auth.split(":", 1)) if args.auth else None, run_history=False, footer_links=[], ssr_mode=False, pwa=False,
            enable_monitoring=False, max_threads=40, theme=make_theme(), app_kwargs={"routes": routes() + server.shelf.routes() + server.pipes.routes()},
            css_paths=[ASSETS / "css" / "app.css"], css=marks_css(tables.params()),
        )  # fmt: skip
    except OSError:
        print(f"port {args.port} of {args.host} is in use; choose another with --port, or --port 0 for a free one", file=sys.stderr)
        raise SystemExit(1) from None
    print(f"Polestar is at {url}" + (f" and {public}" if public else ""), flush=True)
    threading.Thread(target=_warm, args=(engine,), name="polestar-import", daemon=True).start()
    return page


def _warm(engine: Any) -> None:
    """Import what the first run needs, after the first page has had time to load."""
    sleep(2.0)
    prepare = getattr(engine, "prepare", None)
    if prepare is not None:
        prepare()


def _free_port(host: str) -> int:
    import socket

    family, kind, protocol, _, address = socket.getaddrinfo(host.removeprefix("[").removesuffix("]"), 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as s:
        s.bind(address)
        return s.getsockname()[1]
