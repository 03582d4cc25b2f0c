"""What scripts/chart checks. Needs Helm, the built worker, and the package kubernetes-validate."""

import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

import kubernetes_validate
import yaml

HELM, UNSEEN = sys.argv[1:]
CHART = pathlib.Path("helm/unseen")
CASES = sorted((CHART / "ci").glob("*.yaml"))
# What the chart asks for at least, and the newest that is known.
OLDEST, NEWEST = "1.27", kubernetes_validate.latest_version()
ALWAYS = ["ConfigMap", "PodDisruptionBudget", "Service", "Service", "ServiceAccount", "StatefulSet"]
OPTIONAL = ["ConfigMap", "ConfigMap", "Job", "NetworkPolicy", "PrometheusRule", "ScaledObject", "ServiceMonitor"]
# Of the servers, which are pods of their own.
SERVE = ["Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceMonitor"]
# Where pods find files that this machine does not have.
POD_FILES = {"/run/secrets/unseen": "secrets", "/etc/kafka-ca": "ca"}

passed = failed = 0


def check(what, fault):
    """Counts; a fault is shown."""
    global passed, failed
    if fault:
        failed += 1
        print(f"FAIL {what}: {fault}")
    else:
        passed += 1


def unequal(got, wanted):
    return None if got == wanted else f"expected {wanted}, got {got}"


def helm(*args):
    return subprocess.run([HELM, *map(str, args)], capture_output=True, text=True)


def template(*args):
    return helm("template", "news", CHART, "--namespace", "streams", "--kube-version", OLDEST, *args)


def load(path):
    return yaml.safe_load(pathlib.Path(path).read_text())


def render(*args):
    run = template(*args)
    if run.returncode:
        raise SystemExit(f"helm template {' '.join(map(str, args))}: {run.stderr}")
    return [item for item in yaml.safe_load_all(run.stdout) if item]


def only(objects, kind, name=""):
    found = [item for item in objects if item["kind"] == kind and item["metadata"]["name"].endswith(name)
             and item["metadata"]["name"].endswith("-serve") == name.endswith("-serve")]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


def numbers(value):
    """The same with numbers that are written as text, or that Python takes for text, as numbers."""
    if isinstance(value, dict):
        return {name: numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    try:
        return value if isinstance(value, bool) else float(value)
    except ValueError:
        return value


def configuration(objects):
    return next(item["data"]["unseen.yaml"] for item in objects if "unseen.yaml" in item.get("data", {}))


def pod(objects):
    return only(objects, "StatefulSet")["spec"]["template"]


# Kubernetes does not know the kinds of operators. Of these: which fields they have, as far as the chart uses them.
OPERATORS = {
    "ServiceMonitor": {"selector", "namespaceSelector", "endpoints"},
    "PrometheusRule": {"groups"},
    "ScaledObject": {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod", "advanced", "triggers"},
}


def invalid(item, version):
    if item["kind"] in OPERATORS:
        unknown = set(item["spec"]) - OPERATORS[item["kind"]]
        return f"unknown fields {unknown}" if unknown else None
    try:
        kubernetes_validate.validate(item, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message}"


def refused_by_worker(text, objects, directory):
    """What `unseen check` says of a configuration in a pod's environment, with what a pod has as files."""
    container = pod(objects)["spec"]["containers"][0]
    environment = {entry["name"]: entry.get("value", "news-unseen-0") for entry in container["env"]}
    for path, local in POD_FILES.items():
        text = text.replace(path, f"{directory}/{local}")
    path = pathlib.Path(directory) / "unseen.yaml"
    path.write_text(text)
    run = subprocess.run([UNSEEN, "check", "-c", path, "--set", f"state.dir={directory}/state"], capture_output=True, text=True, env=environment)
    return run.stderr if run.returncode else None


def leaves(table, path=""):
    """Paths of values as README.md lists them: tables that hold something of the user's are one."""
    for name, value in table.items():
        place = f"{path}.{name}" if path else name
        free = place in ("config", "resources", "serve.resources", "podSecurityContext", "securityContext", "keda.behavior") or place.endswith("labels")
        if isinstance(value, dict) and value and not free:
            yield from leaves(value, place)
        else:
            yield place


def lines_of(node, path=""):
    """Where each path of a YAML file is written."""
    for key, value in node.value:
        place = f"{path}.{key.value}" if path else key.value
        yield place, key.start_mark.line
        if isinstance(value, yaml.MappingNode):
            yield from lines_of(value, place)


def is_documented(lines, number):
    above = lines[:number]
    while above and re.match(r" *# (?!--)", above[-1]):
        above.pop()
    return bool(above) and above[-1].lstrip().startswith("# -- ")


def in_schema(schema, path):
    for name in path.split("."):
        schema = schema.get("properties", {}).get(name)
        if schema is None:
            return False
    return True


def check_documents():
    text = (CHART / "values.yaml").read_text()
    paths = list(leaves(yaml.safe_load(text)))
    at = dict(lines_of(yaml.compose(text)))
    silent = [path for path in paths if not is_documented(text.splitlines(), at[path])]
    check("values.yaml says what each value is for", unequal(silent, []))
    listed = re.findall(r"^\| `([\w.]+)` \|", (CHART / "README.md").read_text(), re.MULTILINE)
    check("README.md lists the values", unequal(listed, paths))
    schema = json.loads((CHART / "values.schema.json").read_text())
    check("the schema knows the values", unequal([path for path in paths if not in_schema(schema, path)], []))

    version = re.search(r'^version = "(.*)"', pathlib.Path("Cargo.toml").read_text(), re.MULTILINE)[1]
    check("the chart is of this version", unequal(load(CHART / "Chart.yaml")["appVersion"], version))
    user = re.search(r"^USER (\d+):(\d+)$", pathlib.Path("Dockerfile").read_text(), re.MULTILINE).groups()
    security = yaml.safe_load(text)["podSecurityContext"]
    check("pods run as the image's user", unequal((str(security["runAsUser"]), str(security["fsGroup"])), user))


def check_secrets():
    """The chart cannot ask the worker which names are secrets."""
    names = re.search(r"const SECRETS: [^=]* = \[(.*?)\];", pathlib.Path("src/config/secrets.rs").read_text(), re.DOTALL)[1]
    pattern = re.search(r'regexMatch "(.*?)" \(lower \$path\)', (CHART / "templates/_checks.tpl").read_text())[1]
    # The key of a hash is no property, and has a check of its own.
    wanted = sorted({*re.findall('"(.*?)"', names)} - {"siphash"})
    check("the chart knows the worker's secrets", unequal(sorted(pattern.replace("[.]", ".").split("|")), wanted))


def check_case(path, directory):
    values, objects = load(path), render("-f", path)
    lint = helm("lint", CHART, "--strict", "--kube-version", OLDEST, "-f", path)
    check(f"{path.name}: lint", lint.returncode and lint.stdout)
    for version in OLDEST, NEWEST:
        for item in objects:
            check(f"{path.name}: {item['kind']} {item['metadata']['name']} in {version}", invalid(item, version))
    text = configuration(objects)
    check(f"{path.name}: the configuration is the one in the values", unequal(numbers(yaml.safe_load(text)), numbers(values["config"])))
    check(f"{path.name}: the worker takes it", refused_by_worker(text, objects, directory))

    spec = pod(objects)["spec"]
    container = spec["containers"][0]
    check(f"{path.name}: as little rights as can be", unequal(
        [container["securityContext"], spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["seccompProfile"],
         spec["automountServiceAccountToken"]],
        [{"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}, True,
         {"type": "RuntimeDefault"}, False],
    ))
    # A restore shows in /readyz; whatever kills a pod must not ask there.
    probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    check(f"{path.name}: probes", unequal(probes, {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}))
    labels = pod(objects)["metadata"]["labels"]
    serving = [item["spec"]["template"] for item in objects if item["kind"] == "Deployment"]
    for template in serving:
        served = template["spec"]["containers"][0]
        check(f"{path.name}: servers have as little rights as workers", unequal(
            [served["securityContext"], template["spec"]["securityContext"], template["spec"]["automountServiceAccountToken"]],
            [container["securityContext"], spec["securityContext"], False]))
        check(f"{path.name}: servers run `serve`", unequal(served["args"][0], "serve"))
        paths = {name: served[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness")}
        check(f"{path.name}: probes of servers", unequal(paths, {"liveness": "/livez", "readiness": "/readyz"}))
        volumes = [{place["name"] for place in places} for places in (served["volumeMounts"], template["spec"]["volumes"])]
        check(f"{path.name}: every volume of servers is mounted", unequal(*volumes))
        encrypts = "UNSEEN__SERVE__TLS__KEY_LOCATION" in {variable["name"] for variable in served["env"]}
        schemes = {served[f"{name}Probe"]["httpGet"]["scheme"] for name in ("liveness", "readiness")}
        check(f"{path.name}: servers are probed as they speak", unequal(schemes, {"HTTPS" if encrypts else "HTTP"}))
    for item in objects:
        if item["metadata"]["name"].endswith("-serve"):
            selector = item["spec"].get("selector", item["spec"].get("podSelector", {}))
            for wanted in [selector.get("matchLabels", selector)] if selector else []:
                is_in = [wanted.items() <= template["metadata"]["labels"].items() for template in serving]
                check(f"{path.name}: {item['kind']} {item['metadata']['name']} finds the servers and no worker",
                      unequal([is_in, wanted.items() <= labels.items()], [[True], False]))
            continue
        selector = item.get("spec", {}).get("selector", {}) if item["kind"] in ("Service", "StatefulSet", "PodDisruptionBudget") else {}
        missed = {name: value for name, value in selector.get("matchLabels", selector).items() if labels.get(name) != value}
        check(f"{path.name}: {item['kind']} {item['metadata']['name']} finds the pods", unequal(missed, {}))
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    claims = [claim["metadata"]["name"] for claim in only(objects, "StatefulSet")["spec"].get("volumeClaimTemplates", [])]
    volumes = {volume["name"] for volume in spec["volumes"]} | set(claims)
    check(f"{path.name}: every volume is mounted", unequal(mounts, volumes))


def check_tests(directory):
    """The tests of a configuration run before anything is changed, with what pods have."""
    objects = render("-f", CHART / "ci/everything.yaml")
    job, files = (only(objects, kind, "-tests") for kind in ("Job", "ConfigMap"))
    hooks = [item["metadata"]["annotations"]["helm.sh/hook"] for item in (job, files)]
    check("tests run before a change", unequal(hooks, 2 * ["pre-install,pre-upgrade"]))
    spec = job["spec"]["template"]["spec"]
    container, worker = spec["containers"][0], pod(objects)["spec"]["containers"][0]
    check("tests have as little rights as workers", unequal(
        [container["securityContext"], spec["securityContext"]], [worker["securityContext"], pod(objects)["spec"]["securityContext"]]))
    check("every volume of tests is mounted", unequal(*({place["name"] for place in places} for places in (container["volumeMounts"], spec["volumes"]))))
    selector = only(objects, "StatefulSet")["spec"]["selector"]["matchLabels"].items()
    check("tests are no workers", selector <= job["spec"]["template"]["metadata"]["labels"].items())
    check("tests have the configuration of the pods", unequal(files["data"]["unseen.yaml"], configuration(objects)))
    for name, text in files["data"].items():
        for path, local in POD_FILES.items():
            text = text.replace(path, f"{directory}/{local}")
        (pathlib.Path(directory) / name).write_text(text)
    run = subprocess.run([UNSEEN, "test", "-c", f"{directory}/unseen.yaml"], capture_output=True, text=True)
    check("the worker passes them", unequal([run.returncode, run.stdout.splitlines()[-1:]], [0, ["1 test passed"]]) and run.stdout + run.stderr)


def check_options():
    kinds = sorted(item["kind"] for item in render("-f", CHART / "ci/minimal.yaml"))
    check("options are off by default", unequal(kinds, ALWAYS))
    objects = render("-f", CHART / "ci/everything.yaml")
    check("options can be had", unequal(sorted(item["kind"] for item in objects), sorted(ALWAYS + OPTIONAL + SERVE)))

    check("the rules are the file's", unequal(only(objects, "PrometheusRule")["spec"], load(CHART / "files/rules.yaml")))
    url = "https://runbooks.example/unseen"
    linked = render("-f", CHART / "ci/everything.yaml", "--set", f"metrics.prometheusRule.runbookUrl={url}")
    rules = [rule for group in only(linked, "PrometheusRule")["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
    urls = [rule["annotations"]["runbook_url"] for rule in rules]
    check("alerts link to where the runbook is", [at for at in urls if not at.startswith(f"{url}#unseen")])
    board = json.loads(only(objects, "ConfigMap", "-dashboard")["data"]["unseen.json"])
    check("the dashboard is the file's", unequal(board, json.loads((CHART / "files/grafana.json").read_text())))
    wanted = only(objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"].items()
    monitored = [item for item in objects if item["kind"] == "Service" and wanted <= item["metadata"]["labels"].items()]
    check("pods are scraped once", unequal(len(monitored), 1))
    scaled = only(objects, "ScaledObject")["spec"]
    check("KEDA scales the pods", unequal(scaled["scaleTargetRef"]["name"], only(objects, "StatefulSet")["metadata"]["name"]))
    check("no more pods than KEDA wants", unequal(only(objects, "StatefulSet")["spec"].get("replicas"), None))
    triggers = [(trigger["metadata"]["topic"], trigger["metadata"]["activationLagThreshold"]) for trigger in scaled["triggers"]]
    check("KEDA looks at what is read", unequal(
        triggers, [("news.events", "12"), ("news-news.events-repartition", "12"), ("orders.created", "12")]))


class Cluster(http.server.BaseHTTPRequestHandler):
    """As much of a Kubernetes API as Helm needs to look up the workers and the servers, which have `replicas`."""

    replicas = None
    objects = {"statefulsets/news-unseen": "StatefulSet", "deployments/news-unseen-serve": "Deployment"}

    def do_GET(self):
        path = self.path.split("?")[0]
        answer = {
            "/version": {"major": "1", "minor": "30", "gitVersion": "v1.30.0"},
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [{
                "name": "apps", "versions": [{"groupVersion": "apps/v1", "version": "v1"}],
                "preferredVersion": {"groupVersion": "apps/v1", "version": "v1"}}]},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
            "/apis/apps/v1": {"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [
                {"name": f"{kind.lower()}s", "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": ["get"]}
                for kind in self.objects.values()]},
        }.get(path)
        found = path.removeprefix("/apis/apps/v1/namespaces/streams/")
        if found in self.objects and self.replicas is not None:
            answer = {"apiVersion": "apps/v1", "kind": self.objects[found], "metadata": {"name": found.split("/")[1]},
                      "spec": {"replicas": self.replicas}}
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer or {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}).encode())

    def log_message(self, *args):
        pass


def check_enabling_autoscaling(directory):
    """An upgrade that enables KEDA or the servers' autoscaler keeps the number of pods: without a number, Kubernetes takes 1."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Cluster)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    scaled = ["--set", "keda.enabled=true,keda.partitions=12,keda.maxReplicaCount=12,serve.enabled=true,serve.autoscaling.enabled=true",
              "--dry-run=server"]
    path = pathlib.Path(directory) / "kubeconfig"
    path.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a"}}],
    }))
    for replicas in (None, 0, 5):
        Cluster.replicas = replicas
        objects = render("-f", CHART / "ci/minimal.yaml", *scaled, "--kubeconfig", path)
        got = [only(objects, *kind)["spec"].get("replicas") for kind in (["StatefulSet"], ["Deployment", "-serve"])]
        check(f"enabling autoscaling keeps {replicas} pods", unequal(got, [replicas] * 2))
    server.shutdown()


def check_openshift():
    """OpenShift's restricted-v2 assigns user and group ids, and refuses pods that name others."""
    ids = {"runAsUser", "runAsGroup", "fsGroup"}
    everything = ["-f", CHART / "ci/everything.yaml"]

    def securities(*args):
        objects = render(*everything, *args)
        found = {item["kind"]: item["spec"]["template"]["spec"]["securityContext"] for item in objects
                 if item["kind"] in ("StatefulSet", "Deployment", "Job")}
        check("workers, servers and tests have pods", unequal(len(found), 3))
        return objects, found.values()

    openshift = ["--api-versions", "security.openshift.io/v1"]
    text = (CHART / "README.md").read_text()
    documented = re.search(r"^## OpenShift$.*?```yaml\n(.*?)```", text, re.MULTILINE | re.DOTALL)
    values = yaml.safe_load(documented[1]) if documented else {}
    for name, args in [("detected", openshift), ("documented values", ["--set-json", f"podSecurityContext={json.dumps(values.get('podSecurityContext', {}))}"])]:
        objects, found = securities(*args)
        for security in found:
            check(f"OpenShift, {name}: no ids", unequal(ids & set(security), set()))
            check(f"OpenShift, {name}: no more rights", unequal([security["runAsNonRoot"], security["seccompProfile"]], [True, {"type": "RuntimeDefault"}]))
        for item in objects:
            check(f"OpenShift, {name}: {item['kind']} {item['metadata']['name']}", invalid(item, NEWEST))
    _, found = securities(*openshift, "--set", "podSecurityContext.runAsUser=1000650001")
    for security in found:
        check("OpenShift: an id of the user's stays", unequal({name: security[name] for name in ids & set(security)}, {"runAsUser": 1000650001}))
    directories = re.search(r"install -d (.*?) (/\S+)", pathlib.Path("Dockerfile").read_text())
    check("any user of group 0 can write to the image's state directory",
          unequal(directories.groups(), ("-o 65532 -g 0 -m 0775", "/var/lib/unseen")))


def check_notes(directory):
    """Servers listen on all addresses: without a password, anybody who can connect could write."""
    # Helm prints the notes only if there is a cluster, so a copy of the chart has them as a manifest.
    copy = pathlib.Path(directory) / "chart"
    shutil.copytree(CHART, copy)
    shutil.move(copy / "templates/NOTES.txt", copy / "NOTES.txt")
    (copy / "templates/notes.yaml").write_text('notes: {{ tpl (.Files.Get "NOTES.txt") . | quote }}\n')

    def notes(*args):
        run = helm("template", "news", copy, "--kube-version", OLDEST, "--show-only", "templates/notes.yaml", *args)
        assert not run.returncode, run.stderr
        return yaml.safe_load(run.stdout)["notes"]

    warning = "anybody who can connect to port 6379 can write"
    writes = ["-f", CHART / "ci/minimal.yaml", "--set", "serve.enabled=true,config.serve.writes=true"]
    certificates = ["--set", "config.serve.tls.certificate_location=a,config.serve.tls.key_location=b,config.serve.tls.client_ca_location=c"]
    by_variable = ["--set-json", 'extraEnv=[{"name":"UNSEEN__SERVE__PASSWORD","valueFrom":{"secretKeyRef":{"name":"a","key":"b"}}}]']
    for what, args, warns in [
        ("without a password", writes, True),
        ("by a variable", ["-f", CHART / "ci/minimal.yaml", "--set", "serve.enabled=true",
                           "--set-json", 'extraEnv=[{"name":"UNSEEN__SERVE__WRITES","value":"true"}]'], True),
        ("with a password", [*writes, "--set", "config.serve.password=${P}"], False),
        ("with a password by a variable", [*writes, *by_variable], False),
        ("with certificates of clients", [*writes, *certificates], False),
        ("read-only", ["-f", CHART / "ci/minimal.yaml", "--set", "serve.enabled=true"], False),
        ("without servers", [*writes, "--set", "serve.enabled=false"], False),
    ]:
        check(f"notes warn of writes, {what}", unequal(warning in notes(*args), warns))


def check_grace():
    default = json.loads(pathlib.Path("config/schema.json").read_text())["properties"]["worker"]["properties"]["shutdown_timeout"]["default"]
    for drain, grace in [
        (None, 30), (default, 30), ("500ms", 11), ("90s", 100), ("1m 30s", 100), ("1m30s", 100), ("1.5 minutes", 100), ("2min", 130),
        ("1hour", 3610), ("1d", 86410), ("1 0s", 20),
    ]:
        setting = ["--set-string", f"config.worker.shutdown_timeout={drain}"] if drain else []
        objects = render("-f", CHART / "ci/minimal.yaml", "--set", "serve.enabled=true", *setting)
        spec, server = (template["spec"] for template in (pod(objects), only(objects, "Deployment", "-serve")["spec"]["template"]))
        check(f"time for a drain of {drain}", unequal(spec["terminationGracePeriodSeconds"], grace))
        # A server first leaves its Service, and then gets SIGTERM.
        pause = int(server["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1])
        check(f"time for servers, {drain}", unequal(server["terminationGracePeriodSeconds"], grace + pause))
    environment = 'extraEnv=[{"name":"UNSEEN__WORKER__SHUTDOWN_TIMEOUT","value":"2m"}]'
    spec = pod(render("-f", CHART / "ci/minimal.yaml", "--set", "config.worker.shutdown_timeout=5s", "--set-json", environment))["spec"]
    check("time for a drain that the environment sets", unequal(spec["terminationGracePeriodSeconds"], 130))


def check_examples(directory):
    text = (CHART / "values.yaml").read_text()
    example = re.search(r"^config: \{\}\n((?:  # .*\n)+)", text, re.MULTILINE)[1]
    path = pathlib.Path(directory) / "values.yaml"
    for name, config in [
        ("values.yaml", yaml.safe_load(example.replace("  # ", ""))),
        ("config/example.yaml", load("config/example.yaml")),
    ]:
        path.write_text(yaml.safe_dump({"config": config}))
        objects = render("-f", path)
        check(f"the example in {name}", refused_by_worker(configuration(objects), objects, directory))


def check_refusals():
    minimal = ["-f", CHART / "ci/minimal.yaml"]
    keda = [*minimal, "--set", "keda.enabled=true"]
    for args, places in [
        ([], ["config.kafka.bootstrap_servers: required", "config.topics: required"]),
        ([*minimal, "--set-string", "config.topics[0].window=1 fortnight"], ["/config/topics/0/window"]),
        ([*minimal, "--set-json", 'config.topics[0].window={"key":5}'], ["/config/topics/0/window"]),
        ([*minimal, "--set-json", "config.topics[0].window=24"], ["/config/topics/0/window"]),
        ([*minimal, "--set-json", 'config.topics[0]={"input":"a"}'], ["/config/topics/0", "window"]),
        ([*minimal, "--set", "config.worker.wokers=2"], ["/config/worker", "wokers"]),
        ([*minimal, "--set", "config.worker.delivery=twice"], ["/config/worker/delivery"]),
        ([*minimal, "--set", "config.log.level=false"], ["/config/log/level"]),
        ([*minimal, "--set-string", "config.kafka.properties.group\\.id=a"], ["/config/kafka/properties/group.id"]),
        ([*minimal, "--set", "config.kafka.instance_id=a"], ["config.kafka.instance_id: "]),
        ([*minimal, "--set", "config.state.dir=a"], ["config.state.dir: "]),
        ([*minimal, "--set", "config.http.listen=127.0.0.1:80"], ["config.http.listen: "]),
        ([*minimal, "--set", "config.kafka.properties.sasl\\.password=a"], ["config.kafka.properties.sasl.password: "]),
        ([*minimal, "--set-json", 'config.kafka.properties={"sasl":{"password":"a"}}'], ["config.kafka.properties.sasl.password: ", "existingSecret"]),
        ([*minimal, "--set-json", 'config.kafka.properties={"ssl.key":{"password":5}}'], ["config.kafka.properties.ssl.key.password: "]),
        ([*minimal, "--set-json", 'config.kafka.properties={"topic":{"sasl":{"oauthbearer.client":{"secret":"a"}}}}'],
         ["config.kafka.properties.topic.sasl.oauthbearer.client.secret: "]),
        ([*minimal, "--set-json", 'config.kafka.properties={"sasl.password":"${P:-literal}"}'], ["config.kafka.properties.sasl.password: ", "${P}"]),
        ([*minimal, "--set-json", 'config.kafka.properties={"sasl":{"password":"a${P}"}}'], ["config.kafka.properties.sasl.password: "]),
        *[([*minimal, "--set-json", f'config.kafka.properties={{"{name}":"a"}}'], [f"config.kafka.properties.{name}: would be readable"])
          for name in ("sasl.jaas.config", "sasl.oauthbearer.config", "ssl.key.pem", "SASL.Password",
                       "sasl.oauthbearer.assertion.private.key.passphrase")],
        ([*minimal, "--set-json", 'config.kafka.properties={"sasl":{"jaas":{"config":"a"}}}'], ["config.kafka.properties.sasl.jaas.config: "]),
        ([*minimal, "--set-json", 'config.kafka.properties={"sasl.password":"$${P}"}'], ["config.kafka.properties.sasl.password: "]),
        ([*minimal, "--set-json", 'config.topics[0].hash={"siphash":"${S:-00112233445566778899aabbccddeeff}"}'], ["config.topics[0].hash.siphash: "]),
        ([*minimal, "--set", "config.schema_registry.password=a"], ["config.schema_registry.password: would be readable"]),
        ([*minimal, "--set", "config.schema_registry.url=http://a:b@c:8081"], ["config.schema_registry.url: must have no user or password"]),
        ([*minimal, "--set-string", "config.schema_registry.url=${U:-http://a:b@c:8081}"], ["config.schema_registry.url: must have no user"]),
        ([*minimal, "--set", "config.kafka.bootstrap_servers=a:b@c:9092"], ["config.kafka.bootstrap_servers: must have no user or password"]),
        ([*minimal, "--set", "config.serve.password=a"], ["config.serve.password: would be readable"]),
        ([*minimal, "--set", "config.serve.listen=127.0.0.1:1"], ["config.serve: listen and http_listen are set by the chart"]),
        ([*minimal, "--set", "serve.enabled=true,serve.httpPort=6379"], ["serve.httpPort: "]),
        ([*minimal, "--set", "serve.enabled=true,config.state.changelog=false"], ["config.state.changelog: must not be false"]),
        ([*minimal, "--set-json", 'serve.enabled=true,config.topics[0].filter={"kind":"exact"}'], ["config.topics[0].filter: kind"]),
        ([*minimal, "--set-json", 'serve.enabled=true,config.topics[0].filter={"confirm":true,"capacity":1000},config.topics[0].retract={"header":"r"}'],
         ["config.topics[0].retract: with confirm"]),
        ([*minimal, "--set", "serve.tlsSecretName=a,config.serve.tls.certificate_location=b,config.serve.tls.key_location=c"], ["serve.tlsSecretName: "]),
        ([*minimal, "--set", "serve.enabled=true,serve.autoscaling.enabled=true,serve.autoscaling.maxReplicas=1"], ["serve.autoscaling.minReplicas: "]),
        ([*minimal, "--set-string", f"config.topics[0].hash.siphash={'0' * 32}"], ["config.topics[0].hash.siphash: "]),
        ([*minimal, "--set", "terminationGracePeriodSeconds=20"], ["terminationGracePeriodSeconds: "]),
        ([*minimal, "--set-string", "config.worker.shutdown_timeout=${DRAIN}"], ["terminationGracePeriodSeconds: required"]),
        ([*minimal, "--set-json", 'extraEnv=[{"name":"UNSEEN__WORKER__SHUTDOWN_TIMEOUT","value":"2m"}]', "--set", "terminationGracePeriodSeconds=60"],
         ["terminationGracePeriodSeconds: must be above"]),
        ([*minimal, "--set-json", 'extraEnv=[{"name":"UNSEEN__WORKER__SHUTDOWN_TIMEOUT","valueFrom":{"secretKeyRef":{"name":"a","key":"b"}}}]'],
         ["terminationGracePeriodSeconds: required"]),
        ([*minimal, "--set-json", 'extraEnv=[{"name":"UNSEEN__WORKER__SHUTDOWN_TIMEOUT","value":"$(DRAIN)"}]'],
         ["terminationGracePeriodSeconds: required"]),
        ([*minimal, "--set", "replica=3"], ["replica"]),
        ([*minimal, "--set", "persistence.whenDeleted=Keep"], ["/persistence/whenDeleted"]),
        (keda, ["keda.partitions: required", "keda.maxReplicaCount: required"]),
        ([*keda, "--set", "keda.partitions=4,keda.maxReplicaCount=5"], ["keda.maxReplicaCount: "]),
        ([*keda, "--set", "keda.partitions=4,keda.maxReplicaCount=2,keda.minReplicaCount=3"], ["keda.minReplicaCount: "]),
        ([*keda, "--set", "keda.partitions=4,keda.maxReplicaCount=4,keda.activationLagThreshold=3"], ["keda.activationLagThreshold: "]),
        ([*keda, "--set", "keda.partitions=4,keda.maxReplicaCount=4,config.kafka.bootstrap_servers=${A}"], ["keda.bootstrapServers: "]),
    ]:
        run = template(*args)
        missing = [place for place in places if place not in run.stderr]
        given = " ".join(map(str, args[2:])) or "no values"
        check(f"refused: {given}", None if run.returncode and not missing else f"expected {places}, got {run.stderr or 'manifests'}")


def main():
    with tempfile.TemporaryDirectory() as directory:
        files = {name: pathlib.Path(directory) / local for name, local in POD_FILES.items()}
        for path in files.values():
            path.mkdir()
        (files["/run/secrets/unseen"] / "kafka-password").write_text("secret\n")
        (files["/run/secrets/unseen"] / "siphash").write_text("0123456789abcdef" * 2 + "\n")
        certificate = [*"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=ca".split(), "-keyout", os.devnull]
        subprocess.run([*certificate, "-out", files["/etc/kafka-ca"] / "ca.crt"], check=True, capture_output=True)

        lint = helm("lint", CHART, "--strict", "--kube-version", OLDEST)
        check("lint without values", lint.returncode and lint.stdout)
        check_documents()
        check_secrets()
        for path in CASES:
            check_case(path, directory)
        check_options()
        check_tests(directory)
        check_enabling_autoscaling(directory)
        check_notes(directory)
        check_openshift()
        check_grace()
        check_examples(directory)
        check_refusals()
    print(f"{passed} passed, {failed} failed")
    return failed > 0


sys.exit(main())
