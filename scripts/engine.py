"""Asks the Docker engine, for scripts/containers.py and scripts/image.py. Every command and every wait has a bound."""

import os
import socket
import subprocess
import time
import urllib.request

PATIENCE = 180  # seconds for anything to happen: a broker that restarts, a group that settles


class Failed(Exception):
    """A check that failed: one sentence that says what to do, and whose log shows more."""

    def __init__(self, sentence, log=""):
        super().__init__(sentence)
        self.log = log


def run(*args, patience=PATIENCE, ok=True):
    """Runs a command to its end; its exit code and output."""
    try:
        done = subprocess.run(args, capture_output=True, text=True, timeout=patience, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as late:
        raise Failed(f"`{' '.join(args[:6])}` did not end within {patience} s") from late
    if ok and done.returncode:
        raise Failed(f"`{' '.join(args[:6])}` ended with {done.returncode}; what it said follows", done.stdout + done.stderr)
    return done


def docker(*args, **kwargs):
    return run("docker", *args, **kwargs)


def compose(*args, **kwargs):
    return docker("compose", *args, **kwargs)


def said(*args, **kwargs):
    return docker(*args, **kwargs).stdout.strip()


def wait_until(what, condition, patience=PATIENCE):
    """The first true answer of `condition`. Whoever cannot be asked yet has not answered."""
    deadline = time.monotonic() + patience
    why = "nobody answered"
    while time.monotonic() < deadline:
        try:
            if answer := condition():
                return answer
            why = "it is not so yet"
        except (OSError, ValueError, Failed) as failure:
            why = str(failure)
        time.sleep(0.5)
    raise Failed(f"waited {patience} s in vain until {what}: {why}")


def get(url, body=None):
    """What a server answers; to a POST of `body`, if there is one."""
    with urllib.request.urlopen(url, body, timeout=10) as answer:
        return answer.read().decode()


def free_ports(count):
    """The first of so many free ports in a row, below those that the system hands out to clients."""
    for first in range(20_000 + os.getpid() % 10_000, 32_000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
    raise Failed("no free ports; stop what listens on 20000 to 32000")
