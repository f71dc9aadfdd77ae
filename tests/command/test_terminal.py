#!/usr/bin/env python3
"""The progress bar and Ctrl-C."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

from command import ONEHOP, Scratch, environment, run, safetensors, seeded, sparse, tensor
from tap import case, check, holds, run as run_cases, same

BAR = re.compile(r"\rloading \[[#.]{24}\] +\d+ %  \S+ \w+ of 2\.00 GiB  \d+\.\d\d GB/s\x1b\[K")
# One thread that reads little at a time: 2 GiB last longer than the bar needs to come.
SLOW = ["--option", "threads=1", "--option", "slice_bytes=4K"]


class Terminal:
    """The command with its standard error on a terminal of its own."""

    def __init__(self, words, columns=80, env=None):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.child = subprocess.Popen([ONEHOP, *words], stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=slave, env=env or environment())
        os.close(slave)
        self.text = ""

    def read(self, until=None, seconds=60):
        """Takes what comes, until the words or the end of the terminal."""
        end = time.monotonic() + seconds
        while until is None or until not in self.text:
            ready, _, _ = select.select([self.master], [], [], max(0, end - time.monotonic()))
            check(ready, f"nothing more after {self.text!r}")
            try:
                piece = os.read(self.master, 65536)
            except OSError:  # the other end is closed
                piece = b""
            if not piece:
                break
            self.text += piece.decode()

    def finish(self):
        """(exit status, standard output)."""
        self.read()
        out = self.child.stdout.read().decode()
        self.child.stdout.close()
        os.close(self.master)
        return self.child.wait(60), out


@case
def a_terminal_gets_a_bar_that_is_gone_at_the_end():
    with Scratch() as folder:
        path = sparse(os.path.join(folder, "m.safetensors"), "a", 2 << 30)
        terminal = Terminal(["load", "--device", "host", *SLOW, path])
        code, out = terminal.finish()
        same(code, 0)
        holds(out, "rate ")
        check(BAR.match(terminal.text), f"no bar in {terminal.text[:200]!r}")
        check(terminal.text.endswith("\r\x1b[K"), "the bar was not erased")
        same(BAR.sub("", terminal.text), "\r\x1b[K", "all but the bars")


@case
def a_narrow_terminal_gets_a_percentage():
    with Scratch() as folder:
        path = sparse(os.path.join(folder, "m.safetensors"), "a", 2 << 30)
        terminal = Terminal(["load", "--device", "host", *SLOW, path], columns=20)
        same(terminal.finish()[0], 0)
        check(re.fullmatch(r"(\r +\d+ %\x1b\[K)+\r\x1b\[K", terminal.text), terminal.text)


@case
def no_bar_where_it_does_not_belong():
    with Scratch() as folder:
        path = sparse(os.path.join(folder, "m.safetensors"), "a", 1 << 30)
        load = ["load", "--device", "host", *SLOW, path]
        same(run(*load).err, "", "into a pipe")
        for words, env in [(load + ["--quiet"], environment()), (load, dict(environment(), TERM="dumb"))]:
            terminal = Terminal(words, env=env)
            same((terminal.finish()[0], terminal.text), (0, ""))


@case
def a_short_load_draws_nothing():
    with Scratch() as folder:
        path = safetensors(os.path.join(folder, "m.safetensors"), [tensor(seeded(), "a", "U8", [9])])
        terminal = Terminal(["load", "--device", "host", path])
        same((terminal.finish()[0], terminal.text), (0, ""))


@case
def ctrl_c_cancels_the_load():
    with Scratch() as folder:
        path = sparse(os.path.join(folder, "m.safetensors"), "a", 2 << 30)
        for number in signal.SIGINT, signal.SIGTERM:
            terminal = Terminal(["load", "--device", "host", "--repeat", "50", *SLOW, path])
            terminal.read(until="loading [")
            terminal.child.send_signal(number)
            code, out = terminal.finish()
            same((code, out), (1, ""))
            check(terminal.text.endswith("\r\x1b[Konehop: cancelled\r\n"), terminal.text[-100:])


@case
def ctrl_c_ends_a_verification():
    with Scratch() as folder:
        path = sparse(os.path.join(folder, "m.safetensors"), "a", 2 << 30)
        terminal = Terminal(["load", "--device", "host", "--verify", "--repeat", "50", path])
        terminal.read(until="verifying [")
        terminal.child.send_signal(signal.SIGINT)
        same(terminal.finish(), (1, ""))
        check(terminal.text.endswith("onehop: cancelled\r\n"), terminal.text[-100:])


@case
def an_ignored_ctrl_c_stays_ignored():
    with Scratch() as folder:
        path = sparse(os.path.join(folder, "m.safetensors"), "a", 2 << 30)
        child = subprocess.Popen([ONEHOP, "load", "--device", "host", *SLOW, "--json", path],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment(),
                                 preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        # It may come at any time: before, in or after the load.
        while not select.select([child.stdout], [], [], 0.05)[0]:
            child.send_signal(signal.SIGINT)
        out = child.stdout.read()
        child.stdout.close()
        same(child.wait(60), 0)
        holds(out.decode(), '"tensors"')


if __name__ == "__main__":
    run_cases()
