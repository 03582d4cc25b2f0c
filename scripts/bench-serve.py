"""What scripts/bench-serve measures. Needs a built unseen, RedisBloom's module, and the directory of Kafka's jars."""

import argparse
import contextlib
import csv
import io
import json
import os
import pathlib
import re
import resource
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

RATE = 1e-3
WINDOW_HOURS = 24
THREADS = (1, 2)
# Of each case: keys of a command, commands of a pipeline, connections.
CASES = {
    "BF.EXISTS, pipeline 1": (1, 1, 16),
    "BF.EXISTS, pipeline 16": (1, 16, 16),
    "BF.EXISTS, pipeline 64": (1, 64, 8),
    "BF.MEXISTS of 100, pipeline 1": (100, 1, 8),
    "BF.MEXISTS of 100, pipeline 4": (100, 4, 8),
}
# A machine is idle of which so little is taken.
IDLE = 0.1
# Keys of one command of those that fill, or that count what a filter says.
CHUNK = 1000
TICKS = os.sysconf("SC_CLK_TCK")


def number(text):
    units = {"k": 1_000, "M": 1_000_000}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def say(text):
    print(text, file=sys.stderr, flush=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A process that answers, and a connection to it."""

    def __init__(self, name, port, process):
        self.name, self.port, self.process, self.socket = name, port, process, None
        self.loading_s = None  # how long it read its changelog

    def connect(self):
        self.socket = socket.create_connection(("127.0.0.1", self.port))
        self.lines = self.socket.makefile("rb")

    def send(self, *parts):
        parts = [str(part).encode() for part in parts]
        self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))

    def read(self):
        line = self.lines.readline().rstrip()
        kind, text = line[:1], line[1:].decode()
        if kind == b"-":
            raise RuntimeError(f"{self.name}: {text}")
        if kind == b"*":
            return [self.read() for _ in range(int(text))]
        if kind == b"$":
            return self.lines.read(int(text) + 2)[:-2].decode()
        return int(text) if kind == b":" else text

    def ask(self, *parts):
        self.send(*parts)
        return self.read()

    def seen(self, items):
        """How many of these items it calls seen."""
        return sum(sum(self.ask("BF.MEXISTS", "seen", *map(key, items[at : at + CHUNK]))) for at in range(0, len(items), CHUNK))

    def worked(self):
        """Processor time that it has taken, in seconds."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self):
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{self.process.pid}/status").read_text())[1])


def key(item):
    """The key of an item, as redis-benchmark writes it."""
    return f"key:{item:012d}"


@contextlib.contextmanager
def running(command, log, **options):
    """A process that ends with this."""
    with open(log, "ab") as output:
        process = subprocess.Popen(list(map(str, command)), stdout=options.pop("stdout", output), stderr=output, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(what, process, log, ready, patience):
    """Asks until the answer is something, and tells it."""
    began = time.monotonic()
    while True:
        with contextlib.suppress(OSError, RuntimeError):
            if answer := ready():
                return answer
        if process.poll() is not None or time.monotonic() - began > patience:
            raise SystemExit(f"scripts/bench-serve: {what} is not ready:\n" + pathlib.Path(log).read_text()[-3000:])
        time.sleep(0.2)


def fetch(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return answer.read().decode()


def configuration(broker, scratch, items, serve="", group="bench-serve"):
    return f"""
[kafka]
bootstrap_servers = "{broker}"
group_id = "{group}"
[state]
dir = "{scratch}/{group}"
[[topics]]
input = "in"
output = "in-out"
space = "seen"
key = {{ record = "key" }}
window = "{WINDOW_HOURS}h"
filter = {{ capacity = {items}, false_positive_rate = {RATE} }}
{serve}"""


def start_kafka(stack, scratch):
    """Starts a Kafka, which ends with its stdin. Tells its address."""
    log = scratch / "kafka.log"
    process = stack.enter_context(
        running(["scripts/kafka", "--until-eof", "--dir", scratch / "kafka"], log, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    )
    for line in process.stdout:
        if line.startswith("ready "):
            return line.split()[1]
    raise SystemExit("scripts/bench-serve: Kafka does not start:\n" + log.read_text()[-3000:])


def fill(broker, scratch, items, partitions):
    """Writes the topic, and has a worker read it to its end."""
    say(f"filling a topic: {items:,} records, {partitions} partition{'s' * (partitions > 1)}")
    window = WINDOW_HOURS * 3_600_000
    subprocess.run(["java", "-Xmx512m", "-cp", f"{LIBS}/*", "benches/serve/Fill.java", broker, "in", str(partitions), str(items), str(window)], check=True, stderr=subprocess.DEVNULL)
    say("a worker reads it")
    with work(broker, scratch, items, "bench-serve") as (worker, log, read):
        wait_for("the worker", worker, log, lambda: read() == items, 1200)


@contextlib.contextmanager
def work(broker, scratch, items, group):
    """A worker of that group, its log, and how to ask it how many records it has committed."""
    port, log, file = free_port(), scratch / f"{group}.log", scratch / f"{group}-worker.toml"
    file.write_text(configuration(broker, scratch, items, f'[http]\nlisten = "127.0.0.1:{port}"\n', group))

    def read():
        text = fetch(port, "/metrics")
        lags = [float(lag) for lag in re.findall(r"^unseen_consumer_lag_records\{.*\} (\S+)$", text, re.M)]
        counts = re.findall(r"^unseen_records_total\{.*\} (\S+)$", text, re.M)
        return sum(map(float, counts)) if lags and sum(lags) == 0 else 0

    with running([UNSEEN, "run", "-c", file], log) as process:
        yield process, log, read


def start_unseen(stack, scratch, broker, items, name, binary, threads, group="bench-serve", patience=600):
    port, http = free_port(), free_port()
    file, log = scratch / f"{name}.toml", scratch / f"{name}.log"
    serve = f'[serve]\nlisten = "127.0.0.1:{port}"\nhttp_listen = "127.0.0.1:{http}"\nthreads = {threads}\npartitioner = "murmur2"\n'
    file.write_text(configuration(broker, scratch, items, serve, group))
    begun = time.monotonic()
    process = stack.enter_context(running([binary, "serve", "-c", file], log))
    server = Server(name, port, process)
    # 503 until it is ready.
    wait_for(name, process, log, lambda: fetch(http, "/readyz"), patience)
    server.loading_s = time.monotonic() - begun
    server.connect()
    return server


def start_redis(stack, scratch, items):
    port, log = free_port(), scratch / "redis.log"
    process = stack.enter_context(
        running(["redis-server", "--port", port, "--save", "", "--appendonly", "no", "--dir", scratch, "--loadmodule", MODULE], log)
    )
    server = Server("RedisBloom", port, process)
    wait_for("redis-server", process, log, lambda: server.connect() or True, 20)
    server.ask("BF.RESERVE", "seen", RATE, items)
    say(f"{items:,} keys go into RedisBloom")
    for begin in range(0, items, CHUNK):
        server.ask("BF.MADD", "seen", *map(key, range(begin, min(begin + CHUNK, items))))
    return server


def machine():
    """Ticks that all processors of the machine were busy, and all that there were."""
    ticks = list(map(int, pathlib.Path("/proc/stat").read_text().split()[1:9]))
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def wait_until_idle(patience):
    began = time.monotonic()
    while time.monotonic() - began < patience:
        busy, every = machine()
        time.sleep(0.5)
        busy, every = (after - before for after, before in zip(machine(), (busy, every)))
        if busy < IDLE * every:
            return


def client(server, case, count, items):
    """The command, and what redis-benchmark says of it: its rate, and times in milliseconds."""
    keys, pipeline, connections = CASES[case]
    command = ["BF.EXISTS" if keys == 1 else "BF.MEXISTS", "seen", *["key:__rand_int__"] * keys]
    options = ["-p", server.port, "-r", 2 * items, "-P", pipeline, "-c", connections, "-n", count, "--csv"]
    said = subprocess.run(["redis-benchmark", *map(str, options), *command], check=True, capture_output=True, text=True).stdout
    rows = list(csv.reader(io.StringIO(said[said.index('"test"') :])))
    return dict(zip(rows[0][1:], map(float, rows[1][1:])))


def measure(server, case, items, seconds, patience):
    keys, pipeline, _ = CASES[case]
    # As long as is asked for, at the rate of a short run.
    short = client(server, case, 4000 * pipeline // (10 if keys > 1 else 1), items)["rps"]
    count = int(short * seconds)
    wait_until_idle(patience)
    children = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    (busy, every), worked, clients = machine(), server.worked(), children()
    figures = client(server, case, count, items)
    worked, clients = server.worked() - worked, children() - clients
    busy, every = (after - before for after, before in zip(machine(), (busy, every)))
    return {
        "lookups_per_second": figures["rps"] * keys,
        "lookups_per_processor_second": count * keys / worked,
        "p50_ms": figures["p50_latency_ms"],
        "p99_ms": figures["p99_latency_ms"],
        "others": max(0, busy / TICKS - worked - clients) / (every / TICKS),
    }


def memory(server, items):
    """What a server has in memory for a key, and how often it is wrong."""
    sample = min(items, 100_000)
    known = server.seen(range(items - sample, items))
    if known < sample:
        raise SystemExit(f"scripts/bench-serve: {server.name} knows {known} of {sample} keys that were seen")
    info = server.ask("BF.INFO", "seen")
    return {
        "filter_bytes": dict(zip(info[::2], info[1::2]))["Size"],
        "resident_bytes": server.memory(),
        "loading_s": server.loading_s,
        "false_positives": server.seen(range(items, items + 100_000)) / 100_000,
    }


def beside_a_worker(stack, scratch, broker, items, rounds):
    """What a worker takes that reads the topic from its beginning: by itself, beside a server, and beside one that is asked."""
    ways = {way: [] for way in ("alone", "beside a server", "beside a server that is asked")}
    for turn in range(rounds):
        for number, way in enumerate(ways):
            group = f"beside-{turn}-{number}"
            figures = {"p99_ms": []}
            wait_until_idle(30)
            with contextlib.ExitStack() as inner, work(broker, scratch, items, group) as (process, log, read):
                begun, worker, server = time.monotonic(), Server("worker", 0, process), None
                if number > 0:
                    server = start_unseen(inner, scratch, broker, items, f"server-{group}", UNSEEN, 1, group)
                while not (done := wait_for("the worker", process, log, lambda: [read()], 60)[0] == items):
                    if number == 2:
                        figures["p99_ms"].append(client(server, "BF.EXISTS, pipeline 1", 5_000, items)["p99_latency_ms"])
                    else:
                        time.sleep(0.05)
                    if time.monotonic() - begun > 600:
                        raise SystemExit("scripts/bench-serve: the worker does not come to the end")
                figures |= {"seconds": time.monotonic() - begun, "worker_s": worker.worked(), "server_s": server.worked() if server else 0}
            ways[way].append(figures)
            say(f"round {turn + 1}, a worker {way}: {items / figures['seconds']:,.0f} records/s, {1e6 * figures['worker_s'] / items:.2f} µs a record")
    return ways


def run(options, items, partitions):
    with contextlib.ExitStack() as stack:
        scratch = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unseen-bench-serve.")))
        broker = start_kafka(stack, scratch)
        fill(broker, scratch, items, partitions)
        servers = [start_redis(stack, scratch, items)]
        version = dict(zip(*[iter(servers[0].ask("MODULE", "LIST")[0])] * 2))["ver"]
        for threads in THREADS:
            for label, binary in (("", UNSEEN), (f", {options.beside}", options.beside)):
                if binary:
                    name = f"unseen, {threads} thread{'s' * (threads > 1)}{label and ', beside'}"
                    servers.append(start_unseen(stack, scratch, broker, items, name, binary, threads))
        memories = {server.name: memory(server, items) for server in servers}
        cases = [case for case in CASES if not options.only or any(case.startswith(only) for only in options.only)]
        runs = {case: {server.name: [] for server in servers} for case in cases}
        for turn in range(options.rounds):
            for case in cases:
                for server in servers if turn % 2 == 0 else servers[::-1]:
                    figures = measure(server, case, items, options.seconds, options.patience)
                    runs[case][server.name].append(figures)
                    say(f"round {turn + 1}, {case}, {server.name}: {figures['lookups_per_processor_second']:,.0f} a second of the processor, p99 {figures['p99_ms']} ms, others took {figures['others']:.0%}")
        redis = re.search(r"v=(\S+)", output("redis-server", "--version"))[1]
        versions = {"redis": redis, "redisbloom": f"{version // 10000}.{version // 100 % 100}.{version % 100}"}
        beside = beside_a_worker(stack, scratch, broker, items, options.rounds) if options.worker else {}
        return {"items": items, "partitions": partitions, "memory": memories, "runs": runs, "worker": beside}, versions


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip().partition("\n")[0]
    except OSError:
        return "?"


def field(file, name):
    found = re.search(rf"^{name}\s*:\s*(.*)$", pathlib.Path(file).read_text(), re.M)
    return found[1] if found else "?"


def facts(versions):
    return {
        "machine": {
            "processor": field("/proc/cpuinfo", "model name"),
            "cores": os.cpu_count(),
            "memory": field("/proc/meminfo", "MemTotal"),
            "system": output("uname", "-sr"),
        },
        "versions": {"unseen": COMMIT, "rust": output("rustc", "--version"), **versions},
        "taken": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def table(head, rows):
    """A table that reads well on a terminal and is Markdown, too."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    line = lambda row: "| " + " | ".join(cell.ljust(width) if at < 1 else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths))) + " |\n"
    rule = "|" + "|".join("-" * (width + 1) + ("-" if at < 1 else ":") for at, width in enumerate(widths)) + "|\n"
    return line(head) + rule + "".join(map(line, rows))


def pages(results):
    for result in results:
        items, partitions = result["items"], result["partitions"]
        yield f"## {items:,} keys, {partitions} partition{'s' * (partitions > 1)}\n\n"
        rows = []
        for case, servers in result["runs"].items():
            rival = servers["RedisBloom"]
            for name, runs in servers.items():
                median = lambda figure: statistics.median(run[figure] for run in runs)
                # What disturbs a round disturbs both.
                ratio = lambda figure: "" if runs is rival else f"{statistics.median(one[figure] / max(two[figure], 1e-3) for one, two in zip(runs, rival)):.2f}"
                rows.append(
                    [f"{case}: {name}", f"{median('lookups_per_second'):,.0f}", f"{median('lookups_per_processor_second'):,.0f}", ratio("lookups_per_processor_second")]
                    + [f"{median('p50_ms'):.2f}", f"{median('p99_ms'):.2f}", ratio("p99_ms")]
                )
        yield table(["", "look-ups/s", "a second of the processor", "of RedisBloom's", "p50, ms", "p99, ms", "of RedisBloom's"], rows)
        rows = []
        for name, memory in result["memory"].items():
            each = [f"{memory[part] / items:.2f} B" for part in ("filter_bytes", "resident_bytes")]
            loading = memory["loading_s"] and f"{memory['loading_s']:.1f} s"
            rows.append([name, f"{memory['filter_bytes'] / 1e6:.1f} MB", *each, f"{memory['false_positives']:.2e}", loading or ""])
        yield "\n" + table(["", "filter", "filter a key", "process a key", "false positives", "from its start until it answers"], rows) + "\n"
        rows = []
        for way, runs in result["worker"].items():
            median = lambda figure: statistics.median(run[figure] for run in runs)
            asked = [time for run in runs for time in run["p99_ms"]]
            rows.append([way, f"{items / median('seconds'):,.0f}", f"{1e6 * median('worker_s') / items:.2f}", f"{1e6 * median('server_s') / items:.2f}", f"{statistics.median(asked):.2f}" if asked else ""])
        if rows:
            yield "\n" + table(["a worker that reads them", "records/s", "its processor time, µs a record", "the server's", "p99 of BF.EXISTS, ms"], rows) + "\n"


def publish(options, results, versions):
    page = "".join(pages(results)).rstrip() + "\n"
    print(page)
    if options.only and not options.out:
        return
    known, told = facts(versions), shlex.join(["scripts/bench-serve", *options.told])
    of, by = known["machine"], known["versions"]
    others = max(run["others"] for result in results for servers in result["runs"].values() for runs in servers.values() for run in runs)
    origin = (
        f"`{told}`: {of['processor']}, {of['cores']} cores, {of['memory']}, {of['system']}. unseen {by['unseen']}, {by['rust']}, "
        f"Redis {by['redis']}, RedisBloom {by['redisbloom']}. {known['taken']}. Medians of {options.rounds} rounds. "
        f"Others than server and client took at most {others:.0%} of the machine."
    )
    out = pathlib.Path(options.out or "docs/benchmarks")
    out.mkdir(parents=True, exist_ok=True)
    (out / "serving.md").write_text(f"# Serving\n\n{origin}\n\n{page}")
    (out / "serving.json").write_text(json.dumps({"command": told, "facts": known, "results": results}, indent=2, sort_keys=True) + "\n")
    say(f"written to {out}")


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench-serve")
    parser.add_argument("--items", type=number, action="append")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--patience", type=float, default=60)
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--beside")
    parser.add_argument("--out")
    options = parser.parse_args(sys.argv[4:])
    told = sys.argv[4:]
    # Where it was written to is nobody's business.
    options.told = [word for at, word in enumerate(told) if word not in ("--out", options.out) or at == 0 and word != "--out"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    plan = [(items, options.partitions) for items in options.items] if options.items else [(1_000_000, 1), (1_000_000, 4), (50_000_000, 4)]
    results, versions = [], {}
    for items, partitions in plan:
        result, versions = run(options, items, partitions)
        results.append(result)
    publish(options, results, versions)


UNSEEN, MODULE, LIBS = sys.argv[1:4]
# Of what was just built, whatever is changed meanwhile.
COMMIT = output("git", "describe", "--always", "--dirty")
main()
