"""What scripts/kubernetes checks, in namespaces of its own. scripts/cluster.py has the Kubernetes.

A producer writes new ids and repeats all through. At the end the output is compared with the input: each id must be out
once. Every wait is for a condition, and has a bound. Each check is one line; the last ones count them.
"""

import copy
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from cluster import ADDRESS, BROKER, Cluster, Failed, PATIENCE, condition, get, wait_until

CHART = Path("helm/unseen")
CASES = sorted((CHART / "ci").glob("*.yaml"))
PODS = "/api/v1/namespaces/default/pods"
STATEFULSET = "/apis/apps/v1/namespaces/default/statefulsets/news-unseen"
LABEL = "labelSelector=app.kubernetes.io/instance%3Dnews"
INPUT, OUTPUT, PARTITIONS = "news.events", "news.unseen", 4
RATE = 500  # records a second
FIRST = 600_000  # ids before the first pod starts: enough that a restore can be met
REPEATS = 0.3
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
        self.start()

    def run(self):
        # No bookmark is needed: a watch without a version begins with what there is.
        with self.cluster.open("GET", f"{PODS}?watch=1&{LABEL}", timeout=7200) as stream:
            for line in stream:
                event = json.loads(line)
                pod = event["object"]
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

    def ready(self):
        return sum(is_ready(pod) for pod in self.pods.values())

    def mark(self):
        """From now on `fewest` counts anew."""
        with self.lock:
            self.fewest, self.replaced, self.revisions = self.ready(), [], set()


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

    def pods(self):
        items = self.cluster.get(f"{PODS}?{LABEL}")["items"]
        return {pod["metadata"]["name"]: pod for pod in items}

    def statefulset(self):
        return self.cluster.get(STATEFULSET)

    def metric(self, pod, pattern):
        """The sum of the series that match."""
        lines = (line for line in get(f"http://{pod['status']['podIP']}:8080/metrics").splitlines() if re.match(pattern, line))
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

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

    def volume(self, name):
        """The directory that a pod's claim is bound to."""
        claim = self.cluster.get(f"/api/v1/namespaces/default/persistentvolumeclaims/state-{name}")
        volume = self.cluster.get(f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
        return Path(volume["spec"]["hostPath"]["path"])


# The checks.


def is_admitted(release, path):
    """With a strict look at each field first; then in earnest."""
    cluster, name = release.cluster, path.stem
    space = f"case-{name}"
    cluster.kubectl("create", "namespace", space)
    manifests = cluster.helm("template", "news", CHART, "--namespace", space, "--kube-version", cluster.version(), "-f", path).stdout
    cluster.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=manifests)
    installed = cluster.helm("install", "news", CHART, "--namespace", space, "-f", path)
    warnings = [line for line in installed.stderr.splitlines() if "arning" in line]
    if warnings:
        raise Failed(f"the API server warns of {path}", "\n".join(warnings))
    kinds = re.findall(r"^kind: (\w+)", manifests, re.MULTILINE)
    # Replicas, volumes and all: it must be possible to install it once more.
    cluster.helm("upgrade", "news", CHART, "--namespace", space, "-f", path)
    cluster.helm("uninstall", "news", "--namespace", space)
    cluster.kubectl("delete", "namespace", space, "--wait=false")
    return f"{len(kinds)} objects"


def starts(release):
    cluster = release.cluster
    for topic in (INPUT, OUTPUT):
        cluster.kafka("TopicCommand", "--bootstrap-server", BROKER, "--create", "--topic", topic, "--partitions", PARTITIONS)
    release.producer = Producer(cluster)
    release.producer.start()
    cluster.make_volumes(3)
    notes = cluster.helm("install", "news", CHART, "-f", release.write(release.values)).stdout
    if "is in no registry" not in notes:
        raise Failed("who installs the default image should hear that it is in no registry", notes)
    release.watch = Watch(cluster)
    shares = release.flows(2)
    bound = [claim["status"]["phase"] for claim in cluster.get("/api/v1/namespaces/default/persistentvolumeclaims")["items"]]
    if bound != ["Bound"] * 2:
        raise Failed(f"each pod should have a volume of its own: {bound}")
    return shares


def comes_back(release, name, other, stop):
    """Stops a pod in some way, and sees that it is back as the same member with the same volume."""
    volume = release.volume(name)
    before, other_before = release.pods()[name], release.rebalances(other)
    mark = (before["metadata"]["uid"], before["status"]["containerStatuses"][0]["restartCount"])
    wait_until("a checkpoint is on the volume", lambda: release.metric(before, "unseen_checkpoints_total ") > 0)
    stop(name)

    def back():
        pod = release.pods()[name]
        return (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]) != mark and is_ready(pod)

    release.cluster.up(f"{name} is back", back)
    shares = release.flows(2)
    if release.volume(name) != volume:
        raise Failed(f"{name} came back with another volume")
    if release.rebalances(other) != other_before:
        raise Failed(f"{other} got other partitions while {name} was away for less than its session")
    return shares


def killed_comes_back(release):
    return comes_back(release, "news-unseen-0", "news-unseen-1", release.kill)


def deleted_comes_back(release):
    def delete(name):
        release.cluster.kubectl("delete", "pod", name, "--grace-period=0", "--force")
        release.deleted += 1

    return comes_back(release, "news-unseen-1", "news-unseen-0", delete)


def wrong_is_refused(release):
    """What the chart can see is refused before anything changes."""
    release.watch.mark()
    revision, generation = release.revision(), release.statefulset()["metadata"]["generation"]
    wrong = [("window", "1 fortnight"), ("widow", "1h"), ("filter", {"kind": "exakt"})]
    for name, value in wrong:
        values = copy.deepcopy(release.values)
        values["config"]["topics"][0][name] = value
        done = release.cluster.helm("upgrade", "news", CHART, "-f", release.write(values), ok=False)
        if not done.returncode or "config/topics/0" not in done.stderr:
            raise Failed(f"an upgrade to `{name}: {value}` should be refused with its path", done.stdout + done.stderr)
    if release.revision() != revision or release.statefulset()["metadata"]["generation"] != generation or release.watch.replaced:
        raise Failed("an upgrade that was refused changed the release")
    release.flows(2)
    return f"{len(wrong)} of them"


def one_by_one(release, count, change):
    """Does what replaces all pods, and sees that never more than one is away."""
    before = {name: pod["metadata"]["uid"] for name, pod in release.pods().items()}
    release.watch.mark()
    change()
    shares = release.flows(count)
    now = {name: pod["metadata"]["uid"] for name, pod in release.pods().items()}
    kept = [name for name in now if now[name] == before.get(name)]
    if kept:
        raise Failed(f"{kept} still run what they ran before")
    if release.watch.fewest < count - 1:
        raise Failed(f"only {release.watch.fewest} of {count} pods were ready at some time: /readyz does not gate the rollout")
    return f"{shares}; {release.watch.fewest} of {count} ready all the time"


def changed(release, name, value):
    values = copy.deepcopy(release.values)
    values["config"]["worker"][name] = value
    return values


def change_rolls(release):
    return one_by_one(release, 2, lambda: release.upgrade(changed(release, "commit_interval", "300ms")))


def gate_holds_and_rollback(release):
    """A configuration that only the worker can refuse stops at its first pod; rolled back, that one is well again."""
    good = release.revision()
    kept = release.pods()["news-unseen-0"]["metadata"]["uid"]
    release.watch.mark()
    values = copy.deepcopy(release.values)
    # Nobody listens there.
    values["config"]["kafka"]["bootstrap_servers"] = f"{ADDRESS}:1"
    release.cluster.helm("upgrade", "news", CHART, "-f", release.write(values))
    release.upgrades += 1

    def new_revision():
        status = release.statefulset()["status"]
        return status["updateRevision"] != status["currentRevision"] and status["updateRevision"]

    def refused():
        pod = release.pods()["news-unseen-1"]
        [container] = pod["status"]["containerStatuses"]
        return revision_of(pod) == revision and container["restartCount"] > 0

    revision = release.cluster.up("the upgrade is seen", new_revision)
    release.cluster.up("the first pod with an unreachable broker gives up", refused)
    # The other takes over, once the session has ended.
    release.cluster.up(
        "the other pod reads all partitions", lambda: release.metric(release.pods()["news-unseen-0"], "unseen_assigned_partitions ") == PARTITIONS
    )
    first = release.pods()["news-unseen-0"]
    if first["metadata"]["uid"] != kept or not is_ready(first) or release.watch.fewest < 1:
        raise Failed("a rollout whose first pod never gets ready went on to the next")
    if revision in release.watch.revisions:
        raise Failed("a worker that reaches no broker was ready")
    release.cluster.helm("rollback", "news", good)
    shares = release.flows(2)
    if release.pods()["news-unseen-0"]["metadata"]["uid"] != kept:
        raise Failed("a rollback to what a pod runs already replaced it")
    return shares


def scales_up(release):
    release.upgrade({**release.values, "replicas": 3})
    return release.flows(3)


def drains(release):
    """Evicts all pods of the node that has more of them, one after the other."""
    on = Counter(pod["spec"]["nodeName"] for pod in release.pods().values())
    node, count = on.most_common(1)[0]
    if count < 2:
        raise Failed(f"three pods on two nodes should make two on one: {on}")
    release.watch.mark()
    done = release.cluster.kubectl("drain", node, "--timeout", f"{PATIENCE}s", patience=PATIENCE + 30)
    release.evicted += count
    shares = release.flows(3)
    if any(pod["spec"]["nodeName"] == node for pod in release.pods().values()):
        raise Failed(f"{node} was drained, and still has pods")
    if release.watch.fewest < 2:
        raise Failed(f"only {release.watch.fewest} of 3 pods were ready at some time: the disruption budget did not hold")
    held = done.stderr.count("would violate the pod's disruption budget")
    if not held:
        raise Failed("the disruption budget never held an eviction back", done.stdout + done.stderr)
    release.cluster.kubectl("uncordon", node)
    return f"{count} pods of {node} moved, {held} evictions held back; {shares}"


def scales_down(release):
    release.upgrade({**release.values, "replicas": 1})
    return release.flows(1)


def killed_in_restore(release):
    """A pod whose volume was lost rebuilds its state; killed in the midst of that, it begins anew."""
    name, kills = "news-unseen-1", 0
    for entry in release.volume(name).iterdir():
        shutil.rmtree(entry)
    release.upgrade({**release.values, "replicas": 2})

    def rebuilds():
        nonlocal kills
        pod = release.pods().get(name)
        if pod and pod["status"].get("podIP") and release.metric(pod, "unseen_rebuilding_partitions ") > 0:
            release.kill(name)
            kills += 1
        return kills

    wait_until(f"{name} rebuilds its state", rebuilds, pause=0.005)
    shares = release.flows(2)
    pod = release.pods()[name]
    restarts = pod["status"]["containerStatuses"][0]["restartCount"]
    rebuilt = release.metric(pod, "unseen_rebuilt_keys_total ")
    if not restarts or not rebuilt:
        raise Failed(f"{name} was killed in its restore, and should have started and rebuilt anew: {restarts} restarts, {rebuilt:.0f} keys")
    return f"{rebuilt:.0f} keys rebuilt after that; {shares}"


STEPS = [
    ("installed with its default image, two pods share the partitions, each with a volume", starts),
    ("a killed worker is back within its session, with its volume", killed_comes_back),
    ("a pod deleted by force is back within its session, with its volume", deleted_comes_back),
    ("a wrong configuration is refused before anything changes", wrong_is_refused),
    ("a changed configuration rolls the pods one by one", change_rolls),
    ("/readyz holds a rollout at its first pod, and a rollback mends it", gate_holds_and_rollback),
    ("from two pods to three", scales_up),
    ("a node is drained: one pod away at a time", drains),
    ("from three pods to one", scales_down),
    ("a pod that lost its volume is killed in the midst of its restore", killed_in_restore),
]


def dump(cluster, topic):
    """The keys of a topic, as a `read_committed` consumer sees them."""
    done = cluster.kafka(
        "consumer.ConsoleConsumer", "--bootstrap-server", BROKER, "--topic", topic, "--from-beginning", "--isolation-level",
        "read_committed", "--timeout-ms", "30000", patience=900,
    )  # fmt: skip
    # Among them is what the tool logs.
    return [int(line) for line in done.stdout.splitlines() if line.isdigit()]


def is_exact(release):
    release.producer.stop()
    pods = release.pods().values()

    def lag():
        return sum(release.metric(pod, "unseen_consumer_lag_records") for pod in pods) == 0

    release.cluster.up("all that was produced is committed", lag)
    read, out = dump(release.cluster, INPUT), dump(release.cluster, OUTPUT)
    if len(read) != release.producer.sent:
        raise Failed(f"the input has {len(read)} records, and {release.producer.sent} were sent")
    wanted, found = set(read), Counter(out)
    lost, twice = len(wanted - found.keys()), sum(1 for count in found.values() if count > 1)
    unasked = len(found.keys() - wanted)
    release.sum = f"{len(read)} records in, {len(wanted)} ids, {lost} lost, {twice} twice"
    if lost or twice or unasked:
        raise Failed(f"what came out is not what went in: {release.sum}, {unasked} unasked for")
    return release.sum


def uninstalls(release):
    """The volumes stay."""
    release.cluster.helm("uninstall", "news")
    release.cluster.up("all pods are gone", lambda: not release.pods())
    claims = release.cluster.get("/api/v1/namespaces/default/persistentvolumeclaims")["items"]
    if not claims:
        raise Failed("`persistence.whenDeleted: Retain` did not keep the volumes")
    return f"{len(claims)} volumes kept"


def main():
    directory, binaries, helm, resources, image, libs, cgroup = sys.argv[1:]
    cluster = Cluster(directory, binaries, helm, image, libs, cgroup)
    begun = time.monotonic()
    cluster.boot()
    cluster.kubectl("create", "-f", resources)
    wanted = len(list(Path(resources).glob("*.yaml")))
    cluster.up("the custom resources are known", lambda: wanted == sum(
        condition(item, "Established") for item in cluster.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]))
    print(f"Kubernetes {cluster.version()} is up: {time.monotonic() - begun:.0f} s", flush=True)

    release = Release(cluster)
    checks = [(f"the API server admits {path.name}", lambda release, path=path: is_admitted(release, path), False) for path in CASES]
    checks += [(name, check, True) for name, check in STEPS]
    checks += [("each id is out once", is_exact, True), ("uninstalled, the volumes are kept", uninstalls, True)]
    passed = failed = 0
    for name, check, needed in checks:
        began = time.monotonic()
        try:
            note = check(release)
            passed += 1
            print(f"ok      {name} ({f'{note}; ' if note else ''}{time.monotonic() - began:.0f} s)", flush=True)
        except Failed as failure:
            failed += 1
            print(f"FAILED  {name}: {failure}", flush=True)
            for line in (failure.log or cluster.tails()).splitlines()[-80:]:
                print(f"    {line}", flush=True)
            # The release is now not what the next check takes it for.
            if needed:
                break
    print(
        f"{release.killed} workers killed, {release.deleted} pods deleted by force, {release.evicted} evicted, {release.upgrades} upgrades; "
        f"{release.sum or 'the output was not compared'}"
    )
    left = len(checks) - passed - failed
    print(f"{passed} passed, {failed} failed" + (f", {left} not run" if left else ""))
    sys.exit(failed > 0)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
try:
    main()
except Failed as failure:
    sys.exit(f"scripts/kubernetes: {failure}\n{failure.log}")
