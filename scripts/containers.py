"""Checks the image, and that what comes out of docker-compose.yml is exact. Called by scripts/containers, which has
started an engine and built the image; COMPOSE_PROJECT_NAME names the stack. scripts/image.py has the checks of the image.

    containers.py port                 a free port
    containers.py image BASE           checks the image alone
    containers.py all BASE             checks the image, and the stack

Every wait is for a condition, and has a bound. Each check is one line; the last one counts them.
"""

import json
import os
import re
import socket
import sys
import time
import urllib.parse
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine import Failed, compose, docker, free_ports, get, said, wait_until
from image import IMAGE, USER

INPUT, OUTPUT, DEAD = "news.events", "news.unseen", "news.dead"
PARTITIONS = 4


class Stack:
    """The services of docker-compose.yml, on ports of their own."""

    def __init__(self):
        first = free_ports(10)
        self.first = first
        os.environ.update(
            UNSEEN_WORKER_PORT=str(first),
            UNSEEN_KAFKA_PORT=str(first + 5),
            UNSEEN_PROMETHEUS_PORT=str(first + 6),
            UNSEEN_GRAFANA_PORT=str(first + 7),
            UNSEEN_SERVE_PORT=str(first + 8),
            UNSEEN_SERVE_HTTP_PORT=str(first + 9),
        )
        self.prometheus = f"http://127.0.0.1:{first + 6}"
        self.server = f"http://127.0.0.1:{first + 9}"
        self.services = ["producer", "worker", "serve", "prometheus"]

    def up(self, *options):
        compose("up", "--detach", "--no-build", *options, *self.services, patience=600)

    def ids(self, service):
        return compose("ps", "--quiet", service).stdout.split()

    def workers(self):
        """The address of each worker that runs, as it is published."""
        found = []
        for worker in self.ids("worker"):
            port = said("inspect", "--format", '{{(index (index .NetworkSettings.Ports "8080/tcp") 0).HostPort}}', worker)
            found.append(f"http://127.0.0.1:{port}")
        return found

    def metric(self, worker, pattern):
        """The sum of the series that match."""
        lines = (line for line in get(f"{worker}/metrics").splitlines() if re.match(pattern, line))
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def records_flow(self, count=1):
        """Waits until so many workers are ready, read all partitions among them, and have each emitted records since now."""

        def ready():
            workers = self.workers()
            return len(workers) == count and all(get(f"{worker}/readyz") for worker in workers) and workers

        workers = wait_until(f"{count} workers answer /readyz with 200", ready)
        shares = wait_until(
            f"{count} workers share {PARTITIONS} partitions",
            lambda: (shares := [self.metric(worker, "unseen_assigned_partitions ") for worker in workers])
            and sum(shares) == PARTITIONS and min(shares) > 0 and shares,
        )
        unseen = r'unseen_records_total\{.*verdict="unseen"'
        before = [self.metric(worker, unseen) for worker in workers]
        wait_until(
            "each worker emits records",
            lambda: all(self.metric(worker, unseen) > seen + 100 for worker, seen in zip(workers, before)),
        )
        wait_until(
            "each worker commits", lambda: all(self.metric(worker, r'unseen_transactions_total\{.*"committed"') > 0 for worker in workers)
        )
        return f"partitions: {' and '.join(f'{share:.0f}' for share in shares)}"

    def query(self, expression):
        answer = json.loads(get(f"{self.prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression})))
        return answer["data"]["result"]

    def targets_up(self, count):
        wait_until(f"Prometheus scrapes {count} workers", lambda: sum(int(series["value"][1]) for series in self.query('up{job="unseen"}')) == count)

    def committed(self):
        """The committed offset of each partition of the input, as the workers report it."""
        offsets = {}
        for worker in self.workers():
            partitions = json.loads(get(f"{worker}/api/v1/status"))["partitions"]
            offsets.update({partition["partition"]: partition["committed"] for partition in partitions})
        return offsets


def comes_up(stack):
    compose("config", "--quiet")
    # There is no stand-in for Grafana.
    grafana = re.search(r"image: (grafana/.*)", Path("docker-compose.yml").read_text())[1]
    if docker("image", "inspect", grafana, ok=False).returncode == 0:
        stack.services.append("grafana")
    stack.up()
    return stack.records_flow()


def is_locked_down(stack):
    [worker] = stack.ids("worker")
    status = said("exec", worker, "cat", "/proc/1/status")
    effective = re.search(r"CapEff:\s*(\w+)", status)[1]
    uid = re.search(r"Uid:\s*(\d+)", status)[1]
    if int(effective, 16) or uid != USER.split(":")[0]:
        raise Failed(f"the worker runs as user {uid} with capabilities {effective}: see `cap_drop` in docker-compose.yml")
    if docker("exec", worker, "touch", "/etc/unseen/a", ok=False).returncode == 0:
        raise Failed("the worker's root is writable: see `read_only` in docker-compose.yml")


def is_watched(stack):
    stack.targets_up(1)
    wanted = len(re.findall(r"^\s*- (?:alert|record):", Path("helm/unseen/files/rules.yaml").read_text(), re.M))

    def evaluated():
        groups = json.loads(get(f"{stack.prometheus}/api/v1/rules"))["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        wrong = [f"{rule['name']}: {rule.get('lastError', '')}" for rule in rules if rule["health"] == "err"]
        if wrong:
            raise Failed(f"rules that Prometheus cannot evaluate: {wrong}")
        return len(rules) == wanted and all(rule["health"] == "ok" for rule in rules) and rules

    rules = wait_until(f"Prometheus has evaluated the {wanted} rules", evaluated)
    wait_until("Prometheus has the worker's counts", lambda: stack.query('sum(unseen_records_total{verdict="unseen"}) > 0'))
    firing = [rule["name"] for rule in rules if rule["type"] == "alerting" and rule["state"] == "firing"]
    if firing:
        raise Failed(f"alerts fire for a worker that is well: {firing}")
    return f"{wanted} rules"


def answers(stack):
    """What came out was seen, and what never came was not: over the published ports, by both protocols."""
    wait_until("the server answers /readyz with 200", lambda: get(f"{stack.server}/readyz"))
    record = said("compose", "exec", "-T", "kafka", "/opt/kafka/bin/kafka-console-consumer.sh", "--bootstrap-server", "kafka:19092",
                  "--topic", OUTPUT, "--from-beginning", "--isolation-level", "read_committed", "--max-messages", "1").splitlines()[0]
    event = json.loads(record)
    name = f"{INPUT}:{{{event['user_id']}}}"

    def ask(item):
        with socket.create_connection(("127.0.0.1", stack.first + 8), timeout=10) as client:
            parts = ["BF.EXISTS", name, item]
            client.sendall("".join([f"*{len(parts)}\r\n", *(f"${len(part)}\r\n{part}\r\n" for part in parts)]).encode())
            return client.recv(1000).decode().strip()

    wait_until("the server knows what came out", lambda: ask(event["news_id"]) == ":1")
    if (answer := ask("never")) != ":0":
        raise Failed(f"the server says {answer} of what never came")
    question = json.dumps({"keys": [[event["user_id"], event["news_id"]], [event["user_id"], "never"]]})
    answer = json.loads(get(f"{stack.server}/api/v1/spaces/{INPUT}/contains", question.encode()))
    if answer["seen"] != [True, False]:
        raise Failed(f"the server says {answer} over HTTP")


def survives_kill_of_worker(stack):
    [worker] = stack.ids("worker")
    docker("kill", "--signal", "KILL", worker)
    stack.up("--no-recreate")
    return stack.records_flow()


def survives_restart_of_broker(stack):
    compose("restart", "kafka")
    return stack.records_flow()


def scales(stack):
    os.environ["UNSEEN_WORKER_PORT"] = f"{stack.first}-{stack.first + 4}"
    stack.up("--no-recreate", "--scale", "worker=2")
    shares = stack.records_flow(2)
    stack.targets_up(2)
    return shares


def survives_kill_of_one_of_two(stack):
    first, _ = stack.ids("worker")
    docker("kill", "--signal", "KILL", first)
    stack.records_flow()
    stack.up("--no-recreate", "--scale", "worker=2")
    return stack.records_flow(2)


def scales_back(stack):
    stack.up("--no-recreate", "--scale", "worker=1")
    return stack.records_flow()


def stops_in_time(stack):
    """Each service within its grace period: none is killed."""
    containers = compose("ps", "--quiet").stdout.split()
    begun = time.monotonic()
    compose("stop")
    took = time.monotonic() - begun
    for container in containers:
        name, code = said("inspect", "--format", "{{.Name}} {{.State.ExitCode}}", container).lstrip("/").split()
        if code == "137" or ("worker" in name and code != "0"):
            raise Failed(f"{name} ended with {code}: a service that is killed needs a longer stop_grace_period", said("logs", "--tail", "30", container))
    compose("down")
    return f"{took:.0f} s"


def goes_on_after_down(stack):
    os.environ["UNSEEN_WORKER_PORT"] = str(stack.first)
    stack.up()
    return stack.records_flow()


def dump(topic):
    """The records of a topic that a `read_committed` consumer sees, by partition, each as (offset, headers, key, value)."""
    shown = [f"print.{part}=true" for part in ("partition", "offset", "headers", "key")]
    done = compose(
        "exec", "-T", "kafka", "/opt/kafka/bin/kafka-console-consumer.sh", "--bootstrap-server", "kafka:19092", "--topic", topic,
        "--from-beginning", "--isolation-level", "read_committed", "--timeout-ms", "20000",
        *(part for property in shown for part in ("--formatter-property", property)), patience=600,
    )  # fmt: skip
    records = {partition: [] for partition in range(PARTITIONS)}
    for line in done.stdout.splitlines():
        if not line.startswith("Partition:"):
            continue  # what the consumer logs
        partition, offset, headers, key, value = line.split("\t", 4)
        records[int(partition.split(":")[1])].append((int(offset.split(":")[1]), headers, key, value))
    return records


def expected(records):
    """What one undisturbed run writes: of each partition the first record of each id, in order; and the offsets of those without."""
    emitted, dead = {}, []
    for partition, those in records.items():
        met = set()
        emitted[partition] = []
        for offset, _, key, value in those:
            event = json.loads(value)
            ident = (event["user_id"], event["news_id"])
            if None in ident:
                dead.append((partition, offset))
            elif ident not in met:
                met.add(ident)
                emitted[partition].append((key, value))
    return emitted, sorted(dead)


def is_exact(stack):
    compose("stop", "producer")
    records = dump(INPUT)
    ends = {partition: those[-1][0] + 1 for partition, those in records.items() if those}
    gaps = [partition for partition, those in records.items() if [record[0] for record in those] != list(range(len(those)))]
    if gaps or len(ends) != PARTITIONS:
        raise Failed(f"partitions {gaps or 'without records'} of {INPUT} could not be read from their beginning to their end")
    wait_until("all that was produced is committed", lambda: stack.committed() == ends)
    with ThreadPoolExecutor() as pool:
        written, dead = pool.map(dump, (OUTPUT, DEAD))
    emitted, without = expected(records)
    for partition in range(PARTITIONS):
        out, wanted = [record[2:] for record in written[partition]], emitted[partition]
        if out != wanted:
            lost, twice = Counter(wanted) - Counter(out), Counter(out) - Counter(wanted)
            raise Failed(
                f"partition {partition} of {OUTPUT} is not what it should be: {sum(lost.values())} lost, {sum(twice.values())} twice or unasked for, "
                f"{len(out)} there; first lost: {next(iter(lost), None)}, first twice: {next(iter(twice), None)}"
            )
    found = []
    for header in (record[1] for those in dead.values() for record in those):
        where = dict(part.split(":", 1) for part in header.split(",") if ":" in part)
        found.append((int(where["__connect.errors.partition"]), int(where["__connect.errors.offset"])))
    if sorted(found) != without:
        lost, twice = Counter(without) - Counter(found), Counter(found) - Counter(without)
        raise Failed(f"{DEAD} is not what it should be: {sum(lost.values())} records without an id are lost, {sum(twice.values())} twice or unasked for")
    read, came = (sum(map(len, those.values())) for those in (records, emitted))
    if came == read or not without:
        raise Failed(f"the producer wrote nothing to drop: {read} records, {came} of them new, {len(without)} without an id")
    return f"{read} records in, {came} out, {len(without)} dead letters, 0 lost, 0 twice"


def leaves_nothing(_stack):
    compose("down", "--volumes", "--remove-orphans")
    label = f"label=com.docker.compose.project={os.environ['COMPOSE_PROJECT_NAME']}"
    left = [kind for kind, command in (("containers", ["ps", "-aq"]), ("volumes", ["volume", "ls", "-q"]), ("networks", ["network", "ls", "-q"])) if said(*command, "--filter", label)]
    if left:
        raise Failed(f"`docker compose down --volumes` left {left}")


STACK = [
    ("the stack comes up, and records flow", comes_up),
    ("the worker in the stack has no rights", is_locked_down),
    ("Prometheus scrapes the worker, and evaluates the rules", is_watched),
    ("the server says what was seen", answers),
    ("a killed worker goes on", survives_kill_of_worker),
    ("the worker goes on after a restart of the broker", survives_restart_of_broker),
    ("two workers share the partitions, and both are scraped", scales),
    ("one of two is killed: the other takes over, and gives back", survives_kill_of_one_of_two),
    ("one worker is taken away again", scales_back),
    ("all services stop within their grace period", stops_in_time),
    ("records flow again after docker compose down", goes_on_after_down),
    ("each id is out once, and the dead letters are where they belong", is_exact),
    ("nothing is left", leaves_nothing),
]


def logs():
    """What the containers said last."""
    return compose("logs", "--no-color", "--tail", "15", "worker", "kafka", "prometheus", ok=False).stdout


def main():
    what, *rest = sys.argv[1:]
    if what == "port":
        print(free_ports(1))
        return
    checks = [(name, check, rest[0], lambda: "") for name, check in IMAGE]
    if what == "all":
        stack = Stack()
        checks += [(name, check, stack, logs) for name, check in STACK]
    passed, failed = 1, 0  # that the image could be built
    for name, check, subject, log in checks:
        begun = time.monotonic()
        try:
            note = check(subject)
            passed += 1
            print(f"ok      {name} ({f'{note}; ' if note else ''}{time.monotonic() - begun:.0f} s)", flush=True)
        except Failed as failure:
            failed += 1
            print(f"FAILED  {name}: {failure}", flush=True)
            for line in (failure.log or log()).splitlines()[-80:]:
                print(f"    {line}", flush=True)
            # The stack is now not what the next check takes it for.
            if check in dict(map(reversed, STACK)):
                break
    left = len(checks) + 1 - passed - failed
    print(f"{passed} passed, {failed} failed" + (f", {left} not run" if left else ""))
    sys.exit(failed > 0)


main()
