"""What scripts/kubernetes checks, in namespaces of its own. scripts/cluster.py has the Kubernetes, scripts/workload.py
what runs there.

A producer writes new ids and repeats all through. At the end the output is compared with the input: each id must be out
once. Every wait is for a condition, and has a bound. Each check is one line; the last ones count them.
"""

import copy
import json
import re
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from cluster import ADDRESS, BROKER, Cluster, Failed, PATIENCE, condition, get, wait_until
from workload import CHART, CLAIMS, FIRST, INPUT, OUTPUT, PARTITIONS, RATE, Producer, Release, Watch, dump, is_ready, revision_of

CASES = sorted((CHART / "ci").glob("*.yaml"))
# Ids that a pod may have to read again after a stop: those since its last checkpoint. Its state has ten times as many.
SINCE_CHECKPOINT = FIRST // 20
LARGER = "20Gi"
ASKED_AT_ONCE = 16_000

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
    bound = [claim["status"]["phase"] for claim in cluster.get(CLAIMS)["items"]]
    if bound != ["Bound"] * 2:
        raise Failed(f"each pod should have a volume of its own: {bound}")
    return shares


def has_checkpoint_of_now(release, name):
    """Waits until a pod has read what there was, and has checkpoints of all its partitions after that."""
    pod = release.pods()[name]
    release.cluster.up(f"{name} has caught up", lambda: release.lag(pod) < 10 * RATE)
    before = release.metric(pod, "unseen_checkpoints_total ")
    release.cluster.up(
        "checkpoints of that are on the volume", lambda: release.metric(pod, "unseen_checkpoints_total ") >= before + PARTITIONS
    )


def comes_back(release, name, other, stop):
    """Stops a pod in some way, and sees that it is back as the same member with the same volume, and with what is on it."""
    has_checkpoint_of_now(release, name)
    volume = release.volume(name)
    before, other_before = release.pods()[name], release.rebalances(other)
    mark = (before["metadata"]["uid"], before["status"]["containerStatuses"][0]["restartCount"])
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
    read = release.metric(release.pods()[name], "unseen_rebuilt_keys_total ")
    if read > SINCE_CHECKPOINT:
        raise Failed(f"{name} read {read:.0f} keys from the changelog: its state did not come from its volume")
    return f"{read:.0f} keys read that its volume had not; {shares}"


def killed_comes_back(release):
    return comes_back(release, "news-unseen-0", "news-unseen-1", release.kill)


def deleted_comes_back(release):
    def delete(name):
        release.cluster.kubectl("delete", "pod", name, "--grace-period=0", "--force")
        release.deleted += 1

    return comes_back(release, "news-unseen-1", "news-unseen-0", delete)


def wrong_is_refused(release):
    """What the chart can see is refused before anything changes."""
    release.watch.mark(2)
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
    before = release.uids()
    release.watch.mark(count)
    change()
    shares = release.flows(count)
    now = release.uids()
    kept = [name for name in now if now[name] == before.get(name)]
    if kept:
        raise Failed(f"{kept} still run what they ran before")
    # More cannot be: each was away once.
    if release.watch.fewest != count - 1:
        raise Failed(f"{release.watch.fewest} of {count} pods were ready at the worst time, and should be {count - 1}: /readyz does not gate the rollout")
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
    release.watch.mark(2)
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
    if first["metadata"]["uid"] != kept or not is_ready(first) or release.watch.fewest != 1:
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


def stays(release, count, change):
    """Does what must leave the pods alone, and sees that each is still the same, and was ready all the time."""
    before = release.uids()
    release.watch.mark(count)
    change()
    shares = release.flows(count)
    if release.uids() != before or release.watch.replaced:
        raise Failed(f"pods were replaced: {release.watch.replaced}")
    if release.watch.fewest != count:
        raise Failed(f"{release.watch.fewest} of {count} pods were ready at the worst time: one was stopped")
    return shares


def keda_keeps_pods(release):
    """Who lets KEDA scale a release that runs, keeps the pods that it has; and so does who takes that back."""
    keda = {"enabled": True, "partitions": PARTITIONS, "maxReplicaCount": PARTITIONS, "minReplicaCount": 1}
    # The chart's own number is 1 in both: what counts is what runs.
    without = {name: value for name, value in release.values.items() if name != "replicas"}
    objects = "/apis/keda.sh/v1alpha1/namespaces/default/scaledobjects"

    def change():
        release.upgrade({**without, "keda": keda})
        if (replicas := release.statefulset()["spec"]["replicas"]) != 3:
            raise Failed(f"enabling KEDA turned 3 pods into {replicas}")
        [scaled] = release.cluster.get(objects)["items"]
        if scaled["spec"]["scaleTargetRef"]["name"] != "news-unseen":
            raise Failed("the ScaledObject scales something else", json.dumps(scaled["spec"]))
        release.upgrade({**without, "replicas": 3})
        if release.cluster.get(objects)["items"]:
            raise Failed("the ScaledObject is still there once KEDA is no longer asked for")

    return stays(release, 3, change)


def enlarges_volumes(release):
    """As helm/unseen/README.md says under "A larger volume", with the commands that it names."""
    cluster, names = release.cluster, list(release.pods())
    larger = {**release.values, "persistence": {**release.values["persistence"], "size": LARGER}}

    def change():
        generation = release.statefulset()["metadata"]["generation"]
        done = cluster.helm("upgrade", "news", CHART, "-f", release.write(larger), ok=False)
        if not done.returncode or "updates to statefulset spec" not in done.stderr or "forbidden" not in done.stderr:
            raise Failed("`persistence.size` alone should be refused", done.stdout + done.stderr)
        if release.statefulset()["metadata"]["generation"] != generation:
            raise Failed("an upgrade that was refused changed the StatefulSet")
        for name in names:
            asked = json.dumps({"spec": {"resources": {"requests": {"storage": LARGER}}}})
            cluster.kubectl("patch", "pvc", f"state-{name}", "-p", asked)
            cluster.enlarge_volume(release.claim(name))
        wait_until("the claims have the new size", lambda: all(release.claim(name)["status"]["capacity"]["storage"] == LARGER for name in names))
        cluster.kubectl("delete", "statefulset", "news-unseen", "--cascade=orphan")
        release.upgrade(larger)
        [template] = release.statefulset()["spec"]["volumeClaimTemplates"]
        if template["spec"]["resources"]["requests"]["storage"] != LARGER:
            raise Failed("pods to come do not get the new size")

    return stays(release, len(names), change)


def drains(release):
    """Evicts all pods of the node that has more of them, one after the other."""
    on = Counter(pod["spec"]["nodeName"] for pod in release.pods().values())
    node, count = on.most_common(1)[0]
    if count < 2:
        raise Failed(f"three pods on two nodes should make two on one: {on}")
    release.watch.mark(3)
    done = release.cluster.kubectl("drain", node, "--timeout", f"{PATIENCE}s", patience=PATIENCE + 30)
    release.evicted += count
    shares = release.flows(3)
    if any(pod["spec"]["nodeName"] == node for pod in release.pods().values()):
        raise Failed(f"{node} was drained, and still has pods")
    if release.watch.fewest != 2:
        raise Failed(f"{release.watch.fewest} of 3 pods were ready at the worst time, and should be 2: the disruption budget did not hold")
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


def serves(release):
    """With a filter of their own: the workers' is on their volumes."""
    values = copy.deepcopy(release.values)
    values["config"]["serve"] = {"filters": {INPUT: {"kind": "cuckoo", "capacity": "5M", "false_positive_rate": 1e-4}}}
    values["serve"] = {"enabled": True, "replicas": 2, "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}}}
    release.upgrade(values)
    release.cluster.up("two servers are ready", lambda: len(release.servers()) == 2)
    return release.flows(2)


STEPS = [
    ("installed with its default image, two pods share the partitions, each with a volume", starts),
    ("a killed worker is back within its session, with its volume", killed_comes_back),
    ("a pod deleted by force is back within its session, with its volume", deleted_comes_back),
    ("a wrong configuration is refused before anything changes", wrong_is_refused),
    ("a changed configuration rolls the pods one by one", change_rolls),
    ("/readyz holds a rollout at its first pod, and a rollback mends it", gate_holds_and_rollback),
    ("from two pods to three", scales_up),
    ("KEDA is enabled and disabled, and the pods stay", keda_keeps_pods),
    ("volumes are enlarged as helm/unseen/README.md says, and the pods stay", enlarges_volumes),
    ("a node is drained: one pod away at a time", drains),
    ("from three pods to one", scales_down),
    ("a pod that lost its volume is killed in the midst of its restore", killed_in_restore),
    ("two servers follow, beside the worker", serves),
]


def is_exact(release):
    release.producer.stop()
    pods = release.pods().values()
    release.cluster.up("all that was produced is committed", lambda: all(release.lag(pod) == 0 for pod in pods))
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


def servers_agree(release):
    """Each says of every id that it came out, and of others that they did not, but at the rate of its filter."""
    ids = sorted(set(dump(release.cluster, OUTPUT)))
    strangers = range(10**9, 10**9 + ASKED_AT_ONCE)

    def seen(pod, keys):
        answers = []
        for first in range(0, len(keys), ASKED_AT_ONCE):
            body = json.dumps({"keys": [str(key) for key in keys[first:first + ASKED_AT_ONCE]]}).encode()
            answers += json.loads(get(f"http://{pod['status']['podIP']}:8082/api/v1/spaces/{INPUT}/contains", 60, body))["seen"]
        return answers

    wrong = 0
    for pod in release.servers():
        denied = seen(pod, ids).count(False)
        invented = seen(pod, strangers).count(True)
        if denied or invented > 60:  # 16,000 strangers in 4 partitions at 1e-4: 6.4 are to be expected
            raise Failed(f"{pod['metadata']['name']} denies {denied} of {len(ids)} ids, and knows {invented} of {len(strangers)} strangers")
        wrong += invented
    return f"{len(ids)} ids, 0 denied; {wrong} of {2 * len(strangers)} strangers called seen"


def uninstalls(release):
    """The volumes stay."""
    release.cluster.helm("uninstall", "news")
    release.cluster.up("all pods are gone", lambda: not release.pods())
    claims = release.cluster.get(CLAIMS)["items"]
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
    checks += [("each id is out once", is_exact, True), ("the servers know each id that is out", servers_agree, False), ("uninstalled, the volumes are kept", uninstalls, True)]
    passed = failed = 0
    for name, check, needed in checks:
        began = time.monotonic()
        try:
            note = check(release)
            if release.watch:
                release.watch.alive()
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
