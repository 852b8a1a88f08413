"""Starts `tokscore` many times at the price of one import: a process that has the libraries forks for each run.

Every run is a process of its own, with its own arguments, folder, environment and streams. A request is one
line of JSON on standard input, its answer the exit code on standard output.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import traceback

# What commands import sooner or later. Libraries that start threads when imported must stay out.
LIBRARIES = (
    "jinja2",
    "msgspec",
    "numpy",
    "pyarrow.parquet",
    "rich.console",
    "rich.table",
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "tokscore.analytics.comparison.diff",
    "tokscore.cli.printing.reports.diff",
    "tokscore.cli.app",
    "tokscore.cli.printing.styled",
    "tokscore.rendering.source",
    "tokscore.scoring.engines.transformers",
    "tokscore.scoring.run",
)


def serve() -> None:
    for library in LIBRARIES:
        __import__(library)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            run(request)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run(request: dict[str, object]) -> None:
    """Become one run of the command, and end."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    for descriptor, (name, flags) in enumerate(
        [("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY)]
    ):
        os.dup2(os.open(request[name], flags), descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)  # noqa: SIM115
    sys.argv = ["tokscore", *request["arguments"]]
    from tokscore.cli.main import main

    code: object = 0
    try:
        main()
    except SystemExit as ending:
        code = ending.code
    except BaseException:  # noqa: BLE001 (a real process would print it, too)
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = 1
    os._exit(int(code or 0))


if __name__ == "__main__":
    serve()
