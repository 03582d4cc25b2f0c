"""A Kubernetes of two nodes, as processes of this machine, and a broker. Belongs to scripts/kubernetes, which has put its
callers into network, mount and process namespaces of their own: addresses and ports are always free there, and whatever
is started ends with them.

The bridge's address, ADDRESS, is where the nodes, the API server and the broker are; pods reach it, and are reached.
"""

import hashlib
import http.client
import io
import json
import os
import ssl
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from pathlib import Path

PATIENCE = 300  # seconds for anything to happen: the machine may be slow
ADDRESS, PODS = "10.244.0.1", "10.244.0.0/16"
API = f"https://{ADDRESS}:6443"
BROKER = f"{ADDRESS}:9092"
NODES = ("node1", "node2")
PAUSE = "docker.io/library/pause:local"
CGROUPS = Path("/sys/fs/cgroup")


class Failed(Exception):
    """A check that failed: one sentence that says what to do, and whose log shows more."""

    def __init__(self, sentence, log=""):
        super().__init__(sentence)
        self.log = log


def run(*args, patience=PATIENCE, ok=True, stdin=None):
    """Runs a command to its end; its exit code and output."""
    args = [str(arg) for arg in args]
    shown = " ".join([args[0].rsplit("/", 1)[-1], *args[1:6]])
    try:
        done = subprocess.run(args, capture_output=True, text=True, timeout=patience, input=stdin or "")
    except subprocess.TimeoutExpired as late:
        raise Failed(f"`{shown}` did not end within {patience} s") from late
    if ok and done.returncode:
        raise Failed(f"`{shown}` ended with {done.returncode}; what it said follows", done.stdout + done.stderr)
    return done


def wait_until(what, condition, patience=PATIENCE, pause=0.5):
    """The first true answer of `condition`. Whoever cannot be asked yet has not answered."""
    deadline = time.monotonic() + patience
    why = "nobody answered"
    while time.monotonic() < deadline:
        try:
            if answer := condition():
                return answer
            why = "it is not so yet"
        except (OSError, ValueError, KeyError, http.client.HTTPException, Failed) as failure:
            why = f"{type(failure).__name__}: {failure}"
        time.sleep(pause)
    raise Failed(f"waited {patience} s in vain until {what}: {why}")


def get(url, timeout=10, body=None):
    """What a server answers; to a POST of `body`, if there is one."""
    with urllib.request.urlopen(url, body, timeout=timeout) as answer:
        return answer.read().decode()


class Cluster:
    def __init__(self, directory, binaries, helm, image, libs, cgroup):
        self.dir, self.bin, self.helm_binary = Path(directory), Path(binaries), helm
        self.image, self.libs, self.cgroup = image, libs, cgroup
        self.daemons = {}
        self.kubeconfig = self.dir / "kubeconfig"
        os.environ.update(KUBECONFIG=str(self.kubeconfig), KUBECACHEDIR=str(self.dir / "kubectl"))
        os.environ.update({f"HELM_{kind}_HOME": str(self.dir / "helm") for kind in ("CACHE", "CONFIG", "DATA")})
        self.trust = ssl._create_unverified_context()  # the API server makes its own certificate

    # Processes.

    def start(self, name, *args, **kwargs):
        log = self.dir / f"{name}.log"
        with log.open("w") as out:
            self.daemons[name] = subprocess.Popen(
                [str(arg) for arg in args], stdout=kwargs.pop("stdout", out), stderr=out, stdin=subprocess.DEVNULL, **kwargs
            )
        return self.daemons[name]

    def alive(self):
        for name, daemon in self.daemons.items():
            if daemon.poll() is not None:
                log = (self.dir / f"{name}.log").read_text(errors="replace").splitlines()[-30:]
                raise SystemExit("\n".join([f"scripts/kubernetes: {name} ended with {daemon.returncode}; the last lines of its log:", *log]))

    def up(self, what, condition):
        """As `wait_until`, while all daemons run."""

        def both():
            self.alive()
            return condition()

        return wait_until(what, both)

    # The parts.

    def boot(self):
        for command in (
            ["ip", "link", "set", "lo", "up"],
            ["ip", "link", "add", "unseen0", "type", "bridge"],
            ["ip", "address", "add", f"{ADDRESS}/16", "dev", "unseen0"],
            ["ip", "link", "set", "unseen0", "up"],
            ["ip", "route", "add", "default", "dev", "unseen0"],
            ["mount", "-t", "tmpfs", "tmpfs", "/run"],
            ["mount", "-t", "tmpfs", "tmpfs", "/var/log"],
        ):
            run(*command)
        self.kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": API, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "u", "user": {"token": "token"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }))
        (self.dir / "tokens.csv").write_text('token,admin,admin,"system:masters"\n')
        (self.dir / "resolv.conf").write_text("options ndots:1\n")
        self.start_broker()
        self.start_control_plane()
        self.make_pause_image()
        for number, node in enumerate(NODES):
            self.start_node(node, number)
        self.up("the broker is ready", lambda: f"ready {BROKER}" in (self.dir / "broker.log").read_text())
        for node in NODES:
            self.up(f"{node} is ready", lambda node=node: condition(self.get(f"/api/v1/nodes/{node}"), "Ready"))

    def start_broker(self):
        self.start("broker", "scripts/kafka", "--dir", self.dir / "kafka", "--host", ADDRESS, "--port", BROKER.split(":")[1])

    def start_control_plane(self):
        key, public = self.dir / "sa.key", self.dir / "sa.pub"
        run("openssl", "genrsa", "-out", key, "2048")
        run("openssl", "rsa", "-in", key, "-pubout", "-out", public)
        self.start("etcd", "etcd", "--data-dir", self.dir / "etcd", "--unsafe-no-fsync")
        self.start(
            "kube-apiserver", self.bin / "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--cert-dir", self.dir / "certificates",
            "--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file", public,
            "--service-account-signing-key-file", key, "--secure-port=6443", f"--bind-address={ADDRESS}", f"--advertise-address={ADDRESS}",
            "--authorization-mode=RBAC", "--token-auth-file", self.dir / "tokens.csv", "--service-cluster-ip-range=10.96.0.0/24",
            "--allow-privileged=true",
        )  # fmt: skip
        self.up("the API server is ready", lambda: self.call("GET", "/readyz", raw=True) == "ok")
        self.start(
            "kube-controller-manager", self.bin / "kube-controller-manager", "--kubeconfig", self.kubeconfig,
            "--service-account-private-key-file", key, "--use-service-account-credentials=true", "--leader-elect=false",
            "--cert-dir", self.dir / "certificates",
        )  # fmt: skip
        self.start(
            "kube-scheduler", self.bin / "kube-scheduler", "--kubeconfig", self.kubeconfig, "--leader-elect=false",
            "--cert-dir", self.dir / "certificates",
        )  # fmt: skip

    def start_node(self, node, number):
        """Each node has a containerd of its own: a kubelet removes pods that it does not know."""
        home = self.dir / node
        networks = home / "networks"
        networks.mkdir(parents=True)
        (networks / "10-bridge.conflist").write_text(json.dumps({
            "cniVersion": "1.0.0", "name": "bridge", "plugins": [{
                "type": "bridge", "bridge": "unseen0", "isGateway": False,
                "ipam": {"type": "host-local", "dataDir": str(self.dir / "addresses"), "ranges": [[
                    {"subnet": PODS, "rangeStart": "10.244.1.0", "gateway": ADDRESS}]], "routes": [{"dst": "0.0.0.0/0"}]},
            }],
        }))
        socket = home / "containerd.sock"
        (home / "containerd.toml").write_text(f"""\
version = 2
root = "{home}/containerd"
state = "/run/{node}"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{home}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "{PAUSE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{networks}"
""")
        self.start(f"containerd-{node}", "containerd", "-c", home / "containerd.toml")
        ctr = ["ctr", "-a", socket, "-n", "k8s.io", "images"]
        self.up(f"containerd of {node} answers", lambda: run(*ctr, "ls"))
        run(*ctr, "import", self.dir / "pause.tar")
        for name in run(*ctr, "import", self.image).stdout.split():
            if name.startswith("docker.io/"):
                # The name that the chart gives it by default.
                run(*ctr, "tag", "--force", name, f"docker.io/library/unseen:{self.app_version()}")
        group = self.make_control_group(node)
        (home / "kubelet.json").write_text(json.dumps({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "cgroupDriver": "cgroupfs", "cgroupRoot": group, "failCgroupV1": False, "failSwapOn": False, "enforceNodeAllocatable": [],
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}, "authorization": {"mode": "AlwaysAllow"},
            # Other processes of this machine take its memory, too.
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
            "containerRuntimeEndpoint": f"unix://{socket}", "resolvConf": str(self.dir / "resolv.conf"), "makeIPTablesUtilChains": False,
            "port": 10250 + number, "healthzPort": 0, "podLogsDir": f"{home}/logs", "nodeStatusUpdateFrequency": "5s",
            "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99, "volumePluginDir": f"{home}/plugins",
        }))
        self.start(
            f"kubelet-{node}", self.bin / "kubelet", "--kubeconfig", self.kubeconfig, "--config", home / "kubelet.json",
            f"--hostname-override={node}", f"--node-ip={ADDRESS}", "--root-dir", home / "kubelet", "--cert-dir", home / "certificates",
        )  # fmt: skip

    def app_version(self):
        chart = Path("helm/unseen/Chart.yaml").read_text()
        return next(line.split()[1].strip('"') for line in chart.splitlines() if line.startswith("appVersion:"))

    def make_control_group(self, node):
        path = f"{self.cgroup}/{node}"
        if (CGROUPS / "cgroup.controllers").exists():
            parts = [CGROUPS, CGROUPS / self.cgroup]
            (CGROUPS / path).mkdir(parents=True, exist_ok=True)
            for part in parts:
                for controller in (part / "cgroup.controllers").read_text().split():
                    try:
                        (part / "cgroup.subtree_control").write_text(f"+{controller}")
                    except OSError:
                        pass  # one that the kubelet needs is named in its log
            return f"/{path}"
        for hierarchy in CGROUPS.iterdir():
            if hierarchy.is_symlink() or not hierarchy.is_dir():
                continue
            (hierarchy / path).mkdir(parents=True, exist_ok=True)
            # A new group of this controller has neither processors nor memory.
            for level in (hierarchy / self.cgroup, hierarchy / path):
                for name in ("cpuset.cpus", "cpuset.mems"):
                    if (level / name).exists() and not (level / name).read_text().strip():
                        (level / name).write_text((level.parent / name).read_text())
        return f"/{path}"

    def make_pause_image(self):
        """As `docker save` writes one."""
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as files:
            files.add(self.dir / "pause/pause", "pause")
        diff = hashlib.sha256(layer.getvalue()).hexdigest()
        config = json.dumps({
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine), "os": "linux",
            "config": {"Entrypoint": ["/pause"]}, "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff}"]},
        }).encode()  # fmt: skip
        name = hashlib.sha256(config).hexdigest() + ".json"
        manifest = json.dumps([{"Config": name, "RepoTags": [PAUSE], "Layers": ["layer.tar"]}]).encode()
        with tarfile.open(self.dir / "pause.tar", "w") as image:
            for path, data in ((name, config), ("layer.tar", layer.getvalue()), ("manifest.json", manifest)):
                entry = tarfile.TarInfo(path)
                entry.size = len(data)
                image.addfile(entry, io.BytesIO(data))

    def make_volumes(self, count):
        """No provisioner makes any: directories of this machine, which both nodes have."""
        self.call("POST", "/apis/storage.k8s.io/v1/storageclasses", {
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "directories"},
            "provisioner": "kubernetes.io/no-provisioner", "allowVolumeExpansion": True})
        for number in range(count):
            path = self.dir / "volumes" / str(number)
            path.mkdir(parents=True)
            # Kubernetes gives such a volume to nobody.
            os.chown(path, 65532, 65532)
            self.call("POST", "/api/v1/persistentvolumes", {
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"volume-{number}"},
                "spec": {"capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
                         "storageClassName": "directories", "hostPath": {"path": str(path), "type": "Directory"}}})

    def enlarge_volume(self, claim):
        """What a storage driver does once a claim asks for more."""
        size = claim["spec"]["resources"]["requests"]["storage"]
        name, kind = claim["metadata"]["name"], "application/merge-patch+json"
        self.call("PATCH", f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}", {"spec": {"capacity": {"storage": size}}}, kind=kind)
        path = f"/api/v1/namespaces/{claim['metadata']['namespace']}/persistentvolumeclaims/{name}/status"
        self.call("PATCH", path, {"status": {"capacity": {"storage": size}}}, kind=kind)

    # What one asks of it.

    def open(self, method, path, body=None, kind="application/json", timeout=30):
        request = urllib.request.Request(f"{API}{path}", method=method, data=json.dumps(body).encode() if body is not None else None)
        request.add_header("Authorization", "Bearer token")
        request.add_header("Content-Type", kind)
        return urllib.request.urlopen(request, context=self.trust, timeout=timeout)

    def call(self, method, path, body=None, raw=False, kind="application/json"):
        try:
            with self.open(method, path, body, kind) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as refused:
            raise Failed(f"{method} {path}: {refused.code}", refused.read().decode()) from refused
        return text if raw else json.loads(text)

    def get(self, path):
        return self.call("GET", path)

    def version(self):
        return self.get("/version")["gitVersion"]

    def kubectl(self, *args, **kwargs):
        return run(self.bin / "kubectl", *args, **kwargs)

    def helm(self, *args, **kwargs):
        return run(self.helm_binary, *args, **kwargs)

    def kafka(self, tool, *args, **kwargs):
        return run(*self.java(tool), *args, **kwargs)

    def java(self, tool):
        flags = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.apache.logging.log4j.level=WARN"]
        return ["java", *flags, "-cp", f"{self.libs}/*", f"org.apache.kafka.tools.{tool}"]

    def tails(self):
        """The last lines of what runs here, for a check that failed."""
        self.alive()
        shown = [self.kubectl("get", "pods,sts,pdb,pvc", "-A", "-o", "wide", ok=False).stdout]
        shown.append(self.kubectl("get", "events", "-A", "--sort-by=.lastTimestamp", ok=False).stdout[-4000:])
        for pod in self.get("/api/v1/namespaces/default/pods")["items"]:
            name = pod["metadata"]["name"]
            # Without `kubectl logs`, which asks a node by a name that nothing here resolves.
            logs = sorted(self.dir.glob(f"node*/logs/default_{name}_*/unseen/*.log"), key=lambda path: path.stat().st_mtime)
            shown += [f"-- {name}", *(line for path in logs[-1:] for line in path.read_text(errors="replace").splitlines()[-15:])]
        return "\n".join(shown)


def condition(item, kind):
    return any(entry["type"] == kind and entry["status"] == "True" for entry in item.get("status", {}).get("conditions") or ())
