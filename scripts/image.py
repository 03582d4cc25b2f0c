"""What must be so of the image, for scripts/containers.py. UNSEEN_COMMIT says what it was built of."""

import os
import re
from pathlib import Path

from engine import Failed, docker, said

IMAGE_ROOM = 60_000_000  # bytes beside the base
USER = "65532:65532"
LOCKED = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--network", "none"]


def in_image(*args, entrypoint=None, mounts=(), user=None, ok=True):
    """Runs the image as docker-compose.yml and the chart do: with a read-only root, and without privileges."""
    options = [*LOCKED, *(["--entrypoint", entrypoint] if entrypoint else []), *(["--user", user] if user else [])]
    for mount in mounts:
        options += ["--volume", f"{Path(mount[0]).resolve()}:{mount[1]}:ro"]
    return docker("run", "--rm", *options, "unseen", *args, ok=ok)


def runs_without_rights(_base):
    user = said("image", "inspect", "--format", "{{.Config.User}}", "unseen")
    if user != USER:
        raise Failed(f"the image runs as {user or 'root'}: let USER in the Dockerfile be {USER}")
    status = in_image("/proc/self/status", entrypoint="cat").stdout
    left = [line for line in status.splitlines() if re.match(r"Cap(Inh|Prm|Eff|Bnd|Amb):", line) and int(line.split()[1], 16)]
    if left or "NoNewPrivs:\t1" not in status:
        raise Failed(f"the process has rights that it does not need: {left or 'new privileges'}")


def says_its_version(_base):
    version = re.search(r'^version = "(.*)"', Path("Cargo.toml").read_text(), re.M)[1]
    commit = os.environ["UNSEEN_COMMIT"] or "unknown (built in a clone without UNSEEN_COMMIT)"
    wanted = f"unseen {version}\ncommit: {commit}\nfeatures: cli, worker\n"
    out = in_image("--version").stdout
    if not out.startswith(wanted):
        raise Failed(f"`unseen --version` should begin with {wanted!r}; was the image built of these sources?", out)
    return commit


def checks_configurations(_base):
    config = "/etc/unseen/unseen.toml"
    in_image("check", "-c", config, mounts=[("config/compose.toml", config)])
    refused = in_image("run", "-c", config, mounts=[("Cargo.toml", config)], ok=False)
    if refused.returncode != 78 or "unseen.toml" not in refused.stderr:
        raise Failed(f"a wrong configuration ended with {refused.returncode}, not with 78 and its name", refused.stderr)


def plans(_base):
    out = in_image("plan", "--keys", "10M", "--window", "24h", "--false-positive-rate", "1e-4").stdout
    missing = [kind for kind in ("aging", "cuckoo", "exact") if kind not in out]
    if missing:
        raise Failed(f"`unseen plan` does not show {missing}", out)


def is_small(base):
    size, below = (int(said("image", "inspect", "--format", "{{.Size}}", image)) for image in ("unseen", base))
    if size - below >= IMAGE_ROOM:
        raise Failed(f"the image has {(size - below) / 1e6:.0f} MB beside its base, and should have less than {IMAGE_ROOM / 1e6:.0f}: strip what is copied, or install less")
    return f"{(size - below) / 1e6:.0f} MB beside {base}"


def has_no_build_tools(_base):
    tools = "cc c++ gcc g++ clang ld as make cmake cargo rustc pkg-config git perl5 python3 curl wget"
    found = in_image("-c", f"for tool in {tools}; do command -v $tool; done; ls -d /src /usr/local/cargo /usr/include/openssl 2>/dev/null; true", entrypoint="sh")
    if found.stdout:
        raise Failed(f"the image has what only its build needs: {found.stdout.split()}; copy the binary alone into the last stage")


def has_the_notices(_base):
    notices = in_image("/usr/share/doc/unseen/THIRD-PARTY.txt", entrypoint="cat").stdout
    missing = [library for library in ("librocksdb", "librdkafka", "libjemalloc") if library not in notices]
    if missing:
        raise Failed(f"THIRD-PARTY.txt names no {missing}: see scripts/notices")


def state_is_writable(_base):
    """Only the volume is writable, for the user of the image, and for any user of group 0, as OpenShift runs it."""
    for user in USER, "1000650000:0":
        out = in_image("-c", "touch /var/lib/unseen/a && ! touch /a /etc/a /tmp/a 2>/dev/null", entrypoint="sh", user=user, ok=False)
        if out.returncode:
            raise Failed(f"user {user} must be able to write to the volume /var/lib/unseen, and nowhere else", out.stderr)


IMAGE = [
    ("the image runs without rights, on a read-only root", runs_without_rights),
    ("the image: unseen --version", says_its_version),
    ("the image: unseen check, and a wrong configuration is refused", checks_configurations),
    ("the image: unseen plan", plans),
    ("the image writes to its volume alone", state_is_writable),
    ("the image is small", is_small),
    ("the image has no build tools", has_no_build_tools),
    ("the image has the notices of what is linked", has_the_notices),
]
