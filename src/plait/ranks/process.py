"""A rank's process, whatever it runs: the first word that it gets, and how it ends."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from plait.ranks.channel import Channel
from plait.ranks.failures import failure


def run_process(incoming: Any, run: Callable[[Any, Channel[Any, Any]], None]) -> int:
    """The process whose only argument is the descriptor of the socket to the front; returns its exit status.

    `incoming`: the union of what the front says, of which the first word has a `rank`. `run` gets that word, and the
    channel. What it fails with is told to the front, unless that is gone.
    """
    channel: Channel[Any, Any] = Channel(socket.socket(fileno=int(sys.argv[1])), incoming)
    rank = -1
    try:
        setup = channel.receive(wait=True)
        assert setup is not None
        rank = setup.rank
        run(setup, channel)
    except EOFError:
        return 1  # the front is gone: nobody is left to tell
    except BaseException as error:
        with suppress(EOFError):
            channel.send(failure(rank, error))
        return 1
    return 0
