"""The checks of scripts/monitoring: promtool's, and that alerts and panels name only what a worker exports."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RULES = Path("helm/unseen/files/rules.yaml")
DASHBOARD = Path("helm/unseen/files/grafana.json")
METRICS = Path("docs/metrics.md")
RUNBOOK = Path("docs/runbook.md")
TESTS = sorted(Path("tests/monitoring").glob("*.test.yaml"))
CONFIG = Path("monitoring/prometheus.yml")

# Of any target, by Prometheus itself.
TARGET_LABELS = {"job", "instance", "namespace", "pod"}
OF_PROMETHEUS = {"up": set()}
# Of kube-state-metrics, where there is one.
OF_KUBERNETES = {"kube_statefulset_replicas": {"statefulset"}}
VERDICTS = {"unseen", "duplicate", "late", "invalid", "retracted"}
STATES = {"connecting", "restoring", "running", "awaiting_schema", "draining", "blocked", "disconnected", "hung"}
VALUES = {"verdict": VERDICTS, "state": STATES, "result": {"committed", "aborted"}}

FUNCTIONS = set(
    "absent and avg bool by changes count deriv group group_left group_right histogram_quantile ignoring increase"
    " label_replace label_values last_over_time max max_over_time min min_over_time offset on or predict_linear rate resets round sqrt sum time unless without".split()
)
WORD = re.compile(r"(?<![\w:$])[a-zA-Z_][\w:]*")
GROUPING = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right)\s*\(([^)]*)\)")

outcomes = []


def check(name, problems):
    """Says how a check went: `problems` is empty if it passed."""
    outcomes.append(not problems)
    print(f"{'ok  ' if not problems else 'FAIL'} {name}")
    for problem in problems:
        print(f"     {problem}")


def promtool(*arguments, cwd):
    """What promtool has to say, if it is not content."""
    done = subprocess.run(["promtool", *arguments], cwd=cwd, capture_output=True, text=True)
    return [] if done.returncode == 0 else [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]


def exported():
    """The tables of docs/metrics.md, of workers and of servers: the labels of each series. What both have has the same labels."""
    row = re.compile(r"^\| `(?P<name>\w+)` \| (?P<type>counter|gauge|histogram) \| (?P<labels>[^|]*)\| ")
    series, problems, here = {}, [], set()
    for line in METRICS.read_text().splitlines():
        if line.startswith("## "):
            here = set()
        if not line.startswith("| `"):
            continue
        if not (match := row.match(line)):
            problems.append(f"cannot be read: {line}")
            continue
        name, labels = match["name"], set(re.findall(r"`(\w+)`", match["labels"]))
        if (match["type"] == "counter") != name.endswith("_total"):
            problems.append(f"{name}: a counter's name, and no other, ends in _total")
        if name in here:
            problems.append(f"{name} is there twice")
        if series.get(name, labels) != labels:
            problems.append(f"{name} has other labels elsewhere")
        here.add(name)
        series[name] = labels
        if match["type"] == "histogram":
            del series[name]
            series |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
    return series, problems


def expressions_of_rules(text):
    """Each rule's name and expression. An expression is on the line of `expr:`, or below it in a block."""
    rules, name, lines = [], None, text.splitlines()
    for number, line in enumerate(lines):
        if match := re.match(r" +- (alert|record): (\S+)$", line):
            name = match[2]
        elif match := re.match(r"( +)expr: (.*)$", line):
            expression = [match[2]]
            if match[2] == "|":
                expression = []
                for below in lines[number + 1 :]:
                    if len(below) - len(below.lstrip()) <= len(match[1]):
                        break
                    expression.append(below)
            rules.append((name, "\n".join(expression)))
    return rules


def misnamed(expression, series):
    """Names and labels in an expression that are not exported."""
    problems = []
    # Selectors: labels that the series has, with values that they can have.
    for name, selector in re.findall(r"([\w:]+)\{([^}]*)\}", expression):
        for label, matches, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', selector):
            if label not in series.get(name, set()) | TARGET_LABELS:
                problems.append(f"{name} has no label {label}")
            if not set(value.split("|") if "~" in matches else [value]) <= VALUES.get(label, {*value.split("|"), value}):
                problems.append(f"{name}: {label} is never {value}")
    bare = re.sub(r'\{[^}]*\}|\[[^\]]*\]|"[^"]*"|\boffset \w+', "", expression)
    words = WORD.findall(GROUPING.sub("", bare))
    problems += [f"no metric is called {word}" for word in words if word not in series and word not in FUNCTIONS]
    if not any(word in series for word in words):
        problems.append("names no metric")
    # Grouping: labels of some series in the expression.
    known = TARGET_LABELS.union(*(series.get(word, set()) for word in words))
    for labels in GROUPING.findall(bare):
        problems += [f"nothing has the label {label}" for label in WORD.findall(labels) if label not in known]
    return problems


def kept(expression, series):
    """Labels of what an expression results in: those that its first `by` keeps, or else all that its series have."""
    grouped = re.search(r"\bby \(([^)]*)\)", expression)
    if grouped:
        return set(WORD.findall(grouped[1]))
    return TARGET_LABELS.union(*(series.get(word, set()) for word in WORD.findall(expression)))


def check_rules(series):
    text = RULES.read_text()
    rules = expressions_of_rules(text)
    total = len(re.findall(r"(?m)^ +- (?:alert|record): ", text))
    problems = [] if total == len(rules) else [f"of {total} rules the expressions of {len(rules)} were found"]
    by_name = dict(rules)
    for name, expression in rules:
        problems += [f"{name}: {problem}" for problem in misnamed(expression, series)]
        if ":" in name:
            series[name] = kept(expression, series) - TARGET_LABELS
    alerts = re.split(r"(?m)^ +- alert: ", text)[1:]
    for alert in alerts:
        name = alert.split()[0]
        for label in sorted(set(re.findall(r"\$labels\.(\w+)", alert)) - kept(by_name[name], series)):
            problems.append(f"{name}: its text shows a label {label} that it has not")
    check("alerts name only metrics and labels that are exported", problems)
    return [alert.split()[0] for alert in alerts], alerts


def check_alerts(names, alerts):
    headings = {re.sub(r"[^\w -]", "", line.lstrip("# ")).strip().lower().replace(" ", "-")
                for line in RUNBOOK.read_text().splitlines() if line.startswith("#")}
    tests = "".join(path.read_text() for path in TESTS)
    problems = []
    for name, alert in zip(names, alerts):
        for part in ("severity: ", "summary: ", "description: ", "runbook_url: "):
            if part not in alert:
                problems.append(f"{name} has no {part.strip(': ')}")
        anchor = re.search(r"docs/runbook\.md#(\S+)", alert)
        if not anchor or anchor[1] not in headings:
            problems.append(f"{name}: {RUNBOOK} has no such heading")
        if f'alertname="{name}", alertstate="firing"' not in tests:
            problems.append(f"{name}: no test expects it to fire")
    check("each alert has its texts, its part of docs/runbook.md, and a test", problems)


def check_dashboard(series, scratch):
    dashboard = json.loads(DASHBOARD.read_text())
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    panels, problems, expressions = dashboard["panels"], [], []
    ids = [panel["id"] for panel in panels]
    if len(set(ids)) != len(ids):
        problems.append("two panels have the same id")
    taken = {}
    for panel in panels:
        title, place = panel["title"], panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        if max(x for x, _ in cells) >= 24:
            problems.append(f"{title!r} is too wide")
        problems += sorted({f"{title!r} lies over {taken[cell]!r}" for cell in cells & taken.keys()})
        taken |= dict.fromkeys(cells, title)
        if panel["type"] == "row":
            continue
        if not panel.get("targets") or not panel.get("description"):
            problems.append(f"{title!r} asks nothing, or does not say what it shows")
        for target in panel.get("targets", []):
            if target["datasource"]["uid"] != "${datasource}":
                problems.append(f"{title!r} does not ask the data source that was chosen")
            expressions.append((title, target["expr"], set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            query = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            expressions.append((f"variable {variable['name']}", query[1], {query[2]}))
    for title, expression, legend in expressions:
        problems += [f"{title!r}: {problem}" for problem in misnamed(expression, series)]
        problems += [f"{title!r}: its legend shows a label {label} that it has not" for label in sorted(legend - kept(expression, series))]
        unknown = {name for name in re.findall(r"\$(\w+)", expression) if not name.startswith("__")} - variables
        problems += [f"{title!r}: there is no variable {name}" for name in sorted(unknown)]
    used = {word for _, expression, _ in expressions for word in WORD.findall(expression)}
    for name in series:
        if name.startswith("unseen_") and name not in used and re.sub("_(sum|count)$", "_bucket", name) not in used:
            problems.append(f"{name} is on no panel")
    check("panels name only metrics, labels and variables that there are, and show every metric", problems)

    rules = [{"record": f"panel:{number}", "expr": re.sub(r"\$__\w+", "5m", expression)}
             for number, (_, expression, _) in enumerate(expressions)]
    (scratch / "panels.yaml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    check(f"the {len(rules)} expressions of the dashboard parse", promtool("check", "rules", "panels.yaml", cwd=scratch))


def main():
    series, problems = exported()
    check(f"docs/metrics.md lists {len(series)} series", problems or ([] if series else ["it has no table"]))
    series |= OF_PROMETHEUS | OF_KUBERNETES
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        for path in [RULES, CONFIG, *TESTS]:
            shutil.copy(path, scratch)
        check("promtool reads the rules", promtool("check", "rules", "--lint-fatal", RULES.name, cwd=scratch))
        check("promtool reads the configuration of Prometheus", promtool("check", "config", CONFIG.name, cwd=scratch))
        check_alerts(*check_rules(dict(series)))
        check_dashboard(series, scratch)
        for path in TESTS:
            check(f"alerts fire when they should, and not when they should not: {path.name}",
                  promtool("test", "rules", path.name, cwd=scratch))
    print(f"{sum(outcomes)} passed, {len(outcomes) - sum(outcomes)} failed")
    sys.exit(not all(outcomes))


main()
