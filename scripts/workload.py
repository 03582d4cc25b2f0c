"""What works in the cluster of scripts/cluster.py while scripts/kubernetes.py looks on: a producer, the release of the
chart, and a watch over its pods.

A watch that ended would let each check of what it saw pass: `Watch.alive` says so.
"""

import copy
import json
import os
import random
import re
import signal
import subprocess
import threading
from pathlib import Path

from cluster import BROKER, Failed, PATIENCE, condition, get, wait_until

CHART = Path("helm/unseen")
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
STATEFULSET = "/apis/apps/v1/namespaces/default/statefulsets/news-unseen"
LABEL = "labelSelector=app.kubernetes.io/instance%3Dnews,app.kubernetes.io/name%3Dunseen"
SERVERS = "labelSelector=app.kubernetes.io/instance%3Dnews,app.kubernetes.io/name%3Dunseen-serve"
INPUT, OUTPUT, PARTITIONS = "news.events", "news.unseen", 4
RATE = 500  # records a second
FIRST = 600_000  # ids before the first pod starts: enough that a restore can be met
REPEATS = 0.3
WATCH_PATIENCE = 4 * 3600  # seconds that a run may take
# Nothing about the image: the chart's own default must do.
VALUES = {
    "replicas": 2,
    "persistence": {"storageClass": "directories"},
    "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
    "config": {
        # Longer than a pod takes to come back on a slow machine.
        "kafka": {"bootstrap_servers": BROKER, "group_id": "news", "connect_timeout": "10s", "properties": {"session.timeout.ms": 45_000}},
        "worker": {"checkpoint_interval": "2s"},
        "topics": [{"input": INPUT, "output": OUTPUT, "key": {"record": "key"}, "window": "24h", "filter": {"kind": "exact"}}],
    },
}


class Producer(threading.Thread):
    """Writes ids until it is told to stop, some of them again."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self.sent = 0
        log = (cluster.dir / "producer.log").open("w")
        reader = [part for name in ("parse.key=true", "key.separator=:") for part in ("--reader-property", name)]
        command = [*cluster.java("ConsoleProducer"), "--bootstrap-server", BROKER, "--topic", INPUT, "--request-required-acks", "all", *reader]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True)

    def write(self, ids):
        self.process.stdin.write("".join(f"{ident}:{ident}\n" for ident in ids))
        self.process.stdin.flush()
        self.sent += len(ids)

    def run(self):
        dice, new = random.Random(7), FIRST
        for first in range(0, FIRST, 1000):
            self.write(range(first, first + 1000))
        while not self.stopping.wait(0.1):
            batch = []
            for _ in range(RATE // 10):
                if dice.random() < REPEATS:
                    batch.append(dice.randrange(new))
                else:
                    batch.append(new)
                    new += 1
            self.write(batch)

    def stop(self):
        self.stopping.set()
        self.join(PATIENCE)
        self.process.stdin.close()
        if self.process.wait(PATIENCE):
            raise Failed("the producer ended with an error: see its log")


class Watch(threading.Thread):
    """What becomes of the pods, without a gap: each change as the API server reports it."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.cluster, self.pods, self.lock = cluster, {}, threading.Lock()
        self.fewest, self.replaced, self.revisions = 0, [], set()
        self.why = "it never began"
        self.start()

    def run(self):
        try:
            self.follow()
            self.why = "the API server ended it"
        except Exception as failure:  # noqa: BLE001 - whatever it was, nothing is seen from now on
            self.why = f"{type(failure).__name__}: {failure}"

    def follow(self):
        # No bookmark is needed: a watch without a version begins with what there is. Without a time of our own, the API
        # server would end it after half an hour.
        with self.cluster.open("GET", f"{PODS}?watch=1&timeoutSeconds={WATCH_PATIENCE}&{LABEL}", timeout=WATCH_PATIENCE) as stream:
            for line in stream:
                self.see(json.loads(line))

    def see(self, event):
        pod = event["object"]
        if event["type"] == "ERROR":
            raise Failed(f"the API server reports: {pod.get('message')}")
        name = pod["metadata"]["name"]
        with self.lock:
            old = self.pods.get(name)
            if event["type"] == "DELETED":
                self.pods.pop(name, None)
            else:
                self.pods[name] = pod
                if is_ready(pod):
                    self.revisions.add(revision_of(pod))
                if old is None:
                    self.replaced.append(name)
            self.fewest = min(self.fewest, self.ready())

    def alive(self):
        """What it saw is worth nothing once it has ended."""
        if not self.is_alive():
            raise Failed(f"the watch over the pods ended, so that nothing is known of them: {self.why}")

    def ready(self):
        return sum(is_ready(pod) for pod in self.pods.values())

    def mark(self, count):
        """From now on `fewest` counts anew, from so many pods that are ready."""
        wait_until(f"the watch sees {count} pods ready", lambda: self.is_alive() and self.ready() == count)
        with self.lock:
            self.fewest, self.replaced, self.revisions = self.ready(), [], set()
        self.alive()


def revision_of(pod):
    return pod["metadata"]["labels"]["controller-revision-hash"]


def is_ready(pod):
    return condition(pod, "Ready") and "deletionTimestamp" not in pod["metadata"]


class Release:
    def __init__(self, cluster):
        self.cluster = cluster
        self.values = copy.deepcopy(VALUES)
        self.killed = self.deleted = self.evicted = self.upgrades = 0
        self.watch = self.producer = None
        self.sum = ""

    def write(self, values):
        path = self.cluster.dir / "values.json"
        path.write_text(json.dumps(values))
        return path

    def upgrade(self, values=None, ok=True):
        if values:
            self.values = values
        done = self.cluster.helm("upgrade", "news", CHART, "-f", self.write(self.values), ok=ok)
        self.upgrades += done.returncode == 0
        return done

    def revision(self):
        return json.loads(self.cluster.helm("status", "news", "-o", "json").stdout)["version"]

    def uids(self):
        return {name: pod["metadata"]["uid"] for name, pod in self.pods().items()}

    def pods(self):
        items = self.cluster.get(f"{PODS}?{LABEL}")["items"]
        return {pod["metadata"]["name"]: pod for pod in items}

    def servers(self):
        return [pod for pod in self.cluster.get(f"{PODS}?{SERVERS}")["items"] if is_ready(pod)]

    def statefulset(self):
        return self.cluster.get(STATEFULSET)

    def series(self, pod, pattern):
        """The values of the series that match."""
        lines = get(f"http://{pod['status']['podIP']}:8080/metrics").splitlines()
        return [float(line.rsplit(" ", 1)[1]) for line in lines if re.match(pattern, line)]

    def metric(self, pod, pattern):
        """Their sum."""
        return sum(self.series(pod, pattern))

    def rolled_out(self, count):
        """Waits until so many pods of the newest revision are ready."""

        def done():
            item = self.statefulset()
            status = item["status"]
            return (
                status.get("observedGeneration") == item["metadata"]["generation"]
                and status.get("readyReplicas") == status["replicas"] == count
                and status["currentRevision"] == status["updateRevision"]
                and len(self.pods()) == count
            )

        self.cluster.up(f"{count} pods of the newest revision are ready", done)

    def flows(self, count):
        """Waits until so many pods read all partitions among them, and each has emitted records since now."""
        self.rolled_out(count)

        def shares():
            found = [self.metric(pod, "unseen_assigned_partitions ") for pod in self.pods().values()]
            return len(found) == count and sum(found) == PARTITIONS and min(found) > 0 and found

        shares = self.cluster.up(f"{count} pods share {PARTITIONS} partitions", shares)
        unseen = r'unseen_records_total\{.*verdict="unseen"'
        pods = self.pods().values()
        before = [self.metric(pod, unseen) for pod in pods]
        self.cluster.up("each pod emits records", lambda: all(self.metric(pod, unseen) > seen + 50 for pod, seen in zip(pods, before)))
        # A Service sends only to pods that are ready.
        slices = self.cluster.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io/service-name%3Dnews-unseen")
        ready = [end for part in slices["items"] for end in part.get("endpoints") or () if end["conditions"]["ready"]]
        if len(ready) != count:
            raise Failed(f"the Service sends to {len(ready)} pods, and {count} are ready")
        return f"partitions: {' and '.join(f'{share:.0f}' for share in shares)}"

    def rebalances(self, name):
        return self.metric(self.pods()[name], "unseen_rebalances_total ")

    def process(self, name):
        """The process of a pod's worker on this machine."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if (path / "cmdline").read_bytes().startswith(b"unseen\0") and f"UNSEEN__KAFKA__INSTANCE_ID={name}\0".encode() in (path / "environ").read_bytes():
                    return int(path.name)
            except OSError:
                continue
        raise Failed(f"no process of {name} runs")

    def kill(self, name):
        os.kill(self.process(name), signal.SIGKILL)
        self.killed += 1

    def lag(self, pod):
        """Of all its partitions, in records. A partition has none as long as it is not known."""
        found = self.series(pod, "unseen_consumer_lag_records")
        assigned = self.metric(pod, "unseen_assigned_partitions ")
        if len(found) != assigned or not found:
            raise Failed(f"the lag of {len(found)} of {assigned:.0f} partitions is known")
        return sum(found)

    def claim(self, name):
        return self.cluster.get(f"{CLAIMS}/state-{name}")

    def volume(self, name):
        """The directory that a pod's claim is bound to."""
        volume = self.cluster.get(f"/api/v1/persistentvolumes/{self.claim(name)['spec']['volumeName']}")
        return Path(volume["spec"]["hostPath"]["path"])


def dump(cluster, topic):
    """The keys of a topic, as a `read_committed` consumer sees them."""
    done = cluster.kafka(
        "consumer.ConsoleConsumer", "--bootstrap-server", BROKER, "--topic", topic, "--from-beginning", "--isolation-level",
        "read_committed", "--timeout-ms", "30000", patience=900,
    )  # fmt: skip
    # Among them is what the tool logs.
    return [int(line) for line in done.stdout.splitlines() if line.isdigit()]
