"""One line on a terminal that says how far a command is."""

from __future__ import annotations

import shutil
import sys
import time

from .tally import number


class Progress:
    """Of `total` bytes.  Nothing is printed where standard error is no terminal."""

    def __init__(self, total: int, done: int = 0) -> None:
        self.total, self.begin, self.already = total, time.monotonic(), done
        self.shown = 0.0
        self.on = sys.stderr.isatty()

    def show(self, done: int, tokens: int) -> None:
        """done: bytes; tokens: made since the command began."""
        now = time.monotonic()
        if not self.on or now - self.shown < 0.5:
            return
        self.shown = now
        seconds, made = now - self.begin, done - self.already
        left = f", {clock(seconds * (self.total - done) / made)} left" if made > 0 else ""
        speed = f", {made / seconds / 1e6:.1f} MB/s" if seconds > 0 else ""
        self._line(f"{100 * done / max(1, self.total):3.0f} % of {self.total / 1e6:.0f} MB{speed}, "
                   f"{number(tokens, 'token')}{left}")

    def end(self) -> None:
        if self.on and self.shown:
            self._line("")

    def _line(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1  # a line that wraps could not be taken back
        print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
