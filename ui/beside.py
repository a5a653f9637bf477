"""`python -m ui.beside`: app.py that also decodes with no page looking, for `python -m polestar bench page`.

Contract: takes the arguments of app.py, serves its page and prints its address. Then each line of stdin, a JSON object {prompt, method, values},
is decoded in this process, by the engine and the model of the page, and answered by one line: {"seconds"} (wall time, log included) or {"error"}.
Ends with stdin.
"""

from __future__ import annotations

import json
import sys
import threading
from time import monotonic
from typing import Any

from .engine import Engine
from .launch import parse, serve


def decode(engine: Any, model: str, prompt: str, method: str, values: dict[str, Any]) -> float:
    """Seconds of one decode as a run of the page decodes it, in a thread of its own; nobody is sent what it logs. Raises ValueError."""
    session = engine.session(engine.load(model), prompt, engine.config(method, "paper", values), "full")
    began = monotonic()
    for _ in session.steps():
        pass
    return monotonic() - began


def answer(engine: Any, model: str, line: str) -> dict[str, Any]:
    """What a line of stdin is answered."""
    found: dict[str, Any] = {}

    def work() -> None:
        try:
            found["seconds"] = decode(engine, model, **json.loads(line))
        except (ValueError, TypeError, OSError) as error:
            found["error"] = str(error)

    thread = threading.Thread(target=work)  # the page's decodes have a new thread each, too
    thread.start()
    thread.join()
    return found


def main(argv: list[str] | None = None) -> int:
    """Serve and answer until stdin ends."""
    args = parse(argv)
    engine = Engine(args.device, args.dtype, args.quantize, args.threads, graphs=args.graphs)
    page = serve(engine, args)
    try:
        for line in sys.stdin:
            print(json.dumps(answer(engine, args.model, line)), flush=True)
    finally:
        page.close(verbose=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
