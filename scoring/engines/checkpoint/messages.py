"""Messages that transformers would print while it builds or loads a model."""

from __future__ import annotations

import logging as standard_logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[list[str]]:
    """Without transformers' progress bars and warnings; gives what it would have logged."""
    from transformers.utils import logging

    kept: list[str] = []
    handler = standard_logging.Handler(standard_logging.WARNING)
    handler.emit = lambda record: kept.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.get_logger("transformers")
    others = list(logger.handlers)
    bars = logging.is_progress_bar_enabled()
    verbosity, propagates = logging.get_verbosity(), logger.propagate
    logging.set_verbosity_warning()
    logging.disable_progress_bar()
    logger.handlers, logger.propagate = [handler], False
    try:
        yield kept
    finally:
        logger.handlers, logger.propagate = others, propagates
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
