"""Events of the cluster, one after another, while packets flow through its chain."""

import json
import re
import signal
import sys
import time

from flows import last, received, told
from parts import SINK_MAC, busiest, ready_servers, sh, steered
from pathlib import Path

RACK = Path(__file__).resolve().parent.parent / "rack"
# Longest gaps in seconds: where nothing is lost, where other instances take over, where one has to start.
UNHURT, TAKEN_OVER = 0.5, 1.0
# The same while a measurement occupies all processors of the machine, which has none to spare for it.
MEASURED = 5.0
# Packets per second that the chain's profile promises for a core: little enough that the client can offer more.
PROMISED = 6000

CHAIN = """apiVersion: tailwater.dev/v1alpha1
kind: Chain
metadata:
  name: edge
spec:
  match:
    destinations: [10.1.0.0/16]
  functions:
    - nat: {{external: [198.19.255.0/28], internal: [10.9.0.0/16]}}
    - forward: {{destinationMac: "{mac}"}}
  slo: {{latency: 20ms}}
  state: {{redis: {{address: "{control}:16379"}}, whenUnavailable: pass, wait: 20ms, packets: 4096}}
  scale: {{min: 2, servers: 2}}
"""

PROFILE = """apiVersion: tailwater.dev/v1alpha1
kind: Profile
metadata: {{name: edge}}
spec:
  chain: edge
  file: |
    apiVersion: tailwater.dev/v1alpha1
    kind: ChainProfiles
    metadata: {{name: edge}}
    spec:
      version: 2
      profiles:
      - chain: edge
        configuration: "0000000000000000"
        traffic: "made up: less than a core can do"
        machine: {{processor: {processor}, megahertz: 2000, cacheKibibytes: {cache}, cacheWays: 16, privateKibibytes: 1024}}
        cache:
          method: pirate
          unitKibibytes: 2048
          mostUnits: 12
          points: [[1, {rate}, 10, 3], [12, {rate}, 10, 3]]
          verified: [[1, 0.001], [12, 0]]
        latency:
          throughput: [{rate}, 10, 3]
          percentile: 99
          points: [[10, 100, 5, 3], [55, 200, 5, 3], [100, 5000, 20, 3]]
          objectiveMicroseconds: 20000
          objectivePercentile: 99
          nonDropRate: {rate}
          partialDropRate: {rate}
          objectiveRate: {rate}
"""


FUNCTION = """apiVersion: tailwater.dev/v1alpha1
kind: Function
metadata: {{name: limit}}
spec: {{image: "{image}", memory: 64Mi}}
"""

# The last function of the chain with a function in pods: it lets all packets of the client pass.
IN_PODS = {"name": "limit", "program": {"function": "limit", "config": {"packetsPerSecond": 100000, "burst": 64}},
           "onFailure": "bypass"}  # fmt: skip

# A chain without a profile.
UNKNOWN = """apiVersion: tailwater.dev/v1alpha1
kind: Chain
metadata: {name: unknown}
spec:
  match: {destinations: [10.3.0.0/16]}
  functions: [{forward: {}}]
  slo: {latency: 20ms}
"""


class Steps:
    def __init__(self, cluster, arguments):
        self.cluster, self.flows, self.rate = cluster, arguments.flows, arguments.rate
        self.sink, self.load = cluster.folder / "received", cluster.folder / "load"
        self.wrong = []

    def running(self):
        return [one for one in steered(self.cluster) if one["status"].get("phase") == "Running"]

    def wait(self, what, holds, longest=90):
        return self.cluster.until(what, holds, longest)

    def expect(self, holds, what):
        if not holds:
            print(f"NOT AS DOCUMENTED: {what}", flush=True)
            self.wrong.append(what)

    def instances(self, number):
        """Waits until the chain has exactly this number of instances, and packets are steered to each."""
        self.wait(f"{number} instances run and have packets, no other is left",
                  lambda: len(self.running()) == number == len(self.cluster.instances()))  # fmt: skip

    def begin(self):
        """Applies the chain, and starts to send."""
        cluster = self.cluster
        (cluster.folder / "edge.yaml").write_text(CHAIN.format(mac=SINK_MAC, control=cluster.control))
        began = time.monotonic()
        cluster.command(f"kubectl apply -f {cluster.folder}/edge.yaml")
        cluster.command("kubectl wait --for=condition=Ready chain/edge --timeout=60s")
        self.instances(2)
        print(f"two instances run, and the switch knows them, {time.monotonic() - began:.1f} s later", flush=True)
        cluster.start("sink", [sys.executable, str(RACK / "sink.py"), str(self.sink)], "sink")
        self.wait("the sink listens", self.sink.exists)
        self.load.write_text(str(self.rate))
        cluster.start("client", [sys.executable, str(RACK / "client.py"), str(self.flows), str(self.load)], "client")
        self.wait("packets of all flows arrive", lambda: len({flow for _, flow, *_ in received(self.sink)}) == self.flows)
        self.wait("the load of the servers is known", lambda: busiest(cluster))

    # Events.

    def watch(self):
        """p99 and its objective are in the table."""
        line = ""

        def has_p99():
            nonlocal line
            line = self.cluster.kubectl("get chains -A --no-headers")
            return re.search(r"\s20ms\s+[\d.]+(us|ms)\s", line)

        self.wait("kubectl get chains shows a p99", has_p99)
        for what in ("chains -A", "chaininstances -A", "rackservers"):
            print(self.cluster.command(f"kubectl get {what}"), flush=True)

    def scale(self, number, servers):
        patch = json.dumps({"spec": {"scale": {"min": number, "servers": servers}}})
        self.cluster.command(f"kubectl patch chain edge --type merge -p '{patch}'")
        self.instances(number)

    def rise(self):
        self.load.write_text(str(4 * self.rate))
        self.instances(2)

    def fall(self):
        self.load.write_text(str(self.rate))
        self.instances(1)

    def profile(self):
        """A profile by which the controller knows what a core can do; then the load decides how many instances there are."""
        cluster = self.cluster
        processor, cache = ready_servers(cluster)[0]["status"]["machine"].rsplit("-", 1)
        text = PROFILE.format(processor=processor, cache=int(cache.removesuffix("mib")) * 1024, rate=PROMISED)
        (cluster.folder / "profile.yaml").write_text(text)
        cluster.command(f"kubectl apply --server-side -f {cluster.folder}/profile.yaml")
        self.scale(1, 1)

    def restarted(self, component, before):
        """Waits until as many pods of a component are ready as before, at least one of which is another one."""
        now = self.cluster.pods(component)
        return len(now) == len(before) and {uid for *_, uid in now} != {uid for *_, uid in before}

    def kill_agent(self):
        """The first process of the agent's container, on the server with the packets."""
        name = busiest(self.cluster)
        pod = next(pod for pod, node, _ in self.cluster.pods("agent") if node == name)
        restarts = "-o jsonpath='{.status.containerStatuses[0].restartCount}'"
        before = self.cluster.kubectl(f"-n tailwater get pod {pod} {restarts}")
        self.cluster.node(name).kill_container("agent")
        self.wait("its container runs again",
                  lambda: self.cluster.kubectl(f"-n tailwater get pod {pod} {restarts}", check=False) > before)  # fmt: skip
        self.wait("all servers are ready", lambda: len(ready_servers(self.cluster)) == 2)
        self.instances(2)

    def delete_agent(self):
        self.wait("both agents are ready", lambda: len(self.cluster.pods("agent")) == 2)
        name, before = busiest(self.cluster), self.cluster.pods("agent")
        pod = next(pod for pod, node, _ in before if node == name)
        self.cluster.command(f"kubectl -n tailwater delete pod {pod}")
        self.wait("the DaemonSet has made another", lambda: self.restarted("agent", before))
        self.wait("all servers are ready", lambda: len(ready_servers(self.cluster)) == 2)
        self.instances(2)

    def delete_controller(self):
        path = "/apis/coordination.k8s.io/v1/namespaces/tailwater/leases/tailwater-controller"
        leader = lambda: json.loads(self.cluster.get(path) or "{}").get("spec", {}).get("holderIdentity", "")
        first, before = leader(), self.cluster.pods("controller")
        self.cluster.command(f"kubectl -n tailwater delete pod {first}")
        self.wait("another one leads", lambda: leader() not in ("", first))
        self.wait("there are two again", lambda: self.restarted("controller", before))

    def delete_ingress(self):
        before = self.cluster.pods("ingress")
        self.cluster.command(f"kubectl -n tailwater delete pod {before[0][0]}")
        self.wait("there is another", lambda: self.restarted("ingress", before))

    def restart_redis(self):
        self.cluster.kill("redis")
        time.sleep(0.5)
        self.cluster.start_redis()

    def kill_node(self):
        """Everything of the node without the ingress, at once."""
        self.cluster.kill("node-b")
        self.wait("its server is lost", lambda: len(ready_servers(self.cluster)) == 1)

    def return_node(self):
        self.cluster.node("node-b").start()
        self.wait("its server is ready", lambda: len(ready_servers(self.cluster)) == 2, 120)
        self.instances(2)

    def change_functions(self, functions, state):
        patch = json.dumps({"spec": {"functions": functions, "state": state}})
        self.cluster.command(f"kubectl patch chain edge --type merge -p '{patch}'")
        generation = self.cluster.kubectl("get chain edge -o jsonpath='{.metadata.generation}'")
        follows = lambda one: str(one["spec"].get("chainGeneration")) == generation
        self.wait("all instances have the new functions", lambda: all(map(follows, self.cluster.instances())))
        self.instances(2)

    def pods_of_functions(self):
        listed = json.loads(self.cluster.kubectl("get pods -l tailwater.dev/instance -o json"))["items"]
        running = (pod for pod in listed if "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] == "Running")
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in running}

    def add_function(self):
        """A function of somebody else, in a pod beside each instance."""
        (self.cluster.folder / "limit.yaml").write_text(FUNCTION.format(image=self.cluster.function_image()))
        self.cluster.command(f"kubectl apply -f {self.cluster.folder}/limit.yaml")
        self.before = json.loads(self.cluster.kubectl("get chain edge -o json"))["spec"]
        # State in Redis requires all functions in one process, or all in processes of their own.
        self.change_functions([*self.before["functions"], IN_PODS], None)
        self.cluster.command("kubectl wait --for=condition=FunctionsReady chain/edge --timeout=60s")
        self.expect(len(self.pods_of_functions()) == 2, "each instance has a pod of its function")

    def kill_function(self):
        """The pod beside the instance that has packets."""
        before = self.pods_of_functions()
        name = next(iter(before))
        self.cluster.command(f"kubectl delete pod {name} --grace-period=0 --force")
        self.wait("there is another", lambda: len(now := self.pods_of_functions()) == 2 and now != before)
        self.cluster.command("kubectl wait --for=condition=FunctionsReady chain/edge --timeout=60s")

    def remove_function(self):
        self.change_functions(self.before["functions"], self.before["state"])
        self.wait("its pods are gone", lambda: not self.pods_of_functions())
        self.cluster.command("kubectl delete function limit")

    def upgrade(self):
        before = self.cluster.pods("agent")
        values = f"-f {self.cluster.folder}/values.yaml --set agent.reportEvery=40ms --set controller.moves=8"
        self.cluster.command("tailwater definitions | kubectl apply --server-side -f -")
        self.cluster.command(f"helm upgrade tailwater deploy/helm/tailwater -n tailwater {values}")
        for what in ("daemonset/tailwater-agent", "deployment/tailwater-controller"):
            self.cluster.command(f"kubectl -n tailwater rollout status {what} --timeout=180s")
        now = {uid for *_, uid in self.cluster.pods("agent")}
        self.expect(not now & {uid for *_, uid in before}, "all agents are new ones after helm upgrade")
        self.instances(2)

    def measure(self):
        """A Job measures a chain without a profile, and its chain says with which result."""
        cluster = self.cluster
        values = "--reuse-values --set profiling.namespaces={default} --set profiling.cpu=1 --set profiling.memory=1Gi"
        cluster.command(f"helm upgrade tailwater deploy/helm/tailwater -n tailwater {values}")
        cluster.command("kubectl -n tailwater rollout status deployment/tailwater-controller --timeout=180s")
        (cluster.folder / "unknown.yaml").write_text(UNKNOWN)
        cluster.command(f"kubectl apply -f {cluster.folder}/unknown.yaml")
        path = lambda field: f"-o jsonpath='{{.status.conditions[?(@.type==\"Profiled\")].{field}}}'"
        has = lambda field: cluster.kubectl(f"get chain unknown {path(field)}", check=False)
        its_job = lambda: "/unknown-" in cluster.kubectl("get jobs -l tailwater.dev/profile -o name")
        self.wait("there is a Job", its_job, 600)
        # Machines whose cache others use, too, cannot be measured: the chain says so, and runs without a promise.
        self.wait("it has ended", lambda: has("reason") in ("Profiled", "ProfileFailed"), 600)
        print(f"condition Profiled: {has('status')} {has('reason')} {has('message')}".rstrip(), flush=True)
        print(cluster.command("kubectl get jobs,profiles"), flush=True)
        cluster.command("kubectl wait --for=condition=Ready chain/unknown --timeout=60s")
        cluster.command("kubectl delete chain unknown")
        self.wait("its Job is gone", lambda: not its_job())

    def all(self):
        """Name, what is done, and longest allowed gap in seconds."""
        return [
            ("nothing", self.watch, UNHURT),
            ("spec.scale: 4 instances", lambda: self.scale(4, 2), UNHURT),
            ("spec.scale: 2 instances", lambda: self.scale(2, 2), UNHURT),
            ("a profile; spec.scale: 1 instance", self.profile, UNHURT),
            ("load rises fourfold: 2 instances", self.rise, UNHURT),
            ("load falls: 1 instance", self.fall, UNHURT),
            ("spec.scale: 2 instances on 2 servers", lambda: self.scale(2, 2), UNHURT),
            ("the agent with the packets is killed", self.kill_agent, TAKEN_OVER),
            ("the agent's pod is deleted", self.delete_agent, TAKEN_OVER),
            ("the leading controller's pod is deleted", self.delete_controller, UNHURT),
            ("the ingress's pod is deleted", self.delete_ingress, UNHURT),
            ("Redis restarts without its data", self.restart_redis, TAKEN_OVER),
            ("a node is killed", self.kill_node, TAKEN_OVER),
            ("it comes back", self.return_node, UNHURT),
            ("a function in pods is added", self.add_function, TAKEN_OVER),
            ("a function's pod is killed", self.kill_function, TAKEN_OVER),
            ("the function is removed", self.remove_function, TAKEN_OVER),
            ("helm upgrade", self.upgrade, TAKEN_OVER),
            ("a Job measures a chain", self.measure, MEASURED),
        ]

    def uninstall(self):
        """The commands of the documentation, after which nothing is left."""
        run = self.cluster.command
        run("kubectl delete chains,profiles -A --all")
        run("kubectl wait --for=delete chaininstances -A --all --timeout=120s")
        run("helm uninstall tailwater -n tailwater")
        left = self.left()
        self.expect(not left, f"only definitions, leases and the namespace are left after helm uninstall: {left}")
        run("tailwater definitions | kubectl delete -f -")
        run("kubectl delete namespace tailwater --timeout=120s")
        run("kubectl label nodes --all tailwater.dev/server-")
        flows = sh(f"ovs-ofctl -O OpenFlow13 dump-flows unix:{self.cluster.folder}/br0.mgmt").stdout
        rules = [line for line in flows.splitlines() if "cookie=0x7a" in line]
        print(f"left in the switch, as documented: {len(rules)} rules", flush=True)
        for node in self.cluster.nodes:
            self.wait("no container of Tailwater runs",
                      lambda node=node: not re.search("tailwater:", node.run("ctr -n k8s.io containers list")))  # fmt: skip

    def left(self):
        """Objects with Tailwater's name, in any kind that can be listed."""
        kinds = self.cluster.kubectl("api-resources --verbs=list -o name").split()
        # With the definitions goes the API service that the API server keeps for them.
        passing = {"events", "events.events.k8s.io", "leases.coordination.k8s.io", "namespaces", "endpoints",
                   "apiservices.apiregistration.k8s.io"}  # fmt: skip
        kinds = [kind for kind in kinds if kind not in passing and not kind.endswith("metrics.k8s.io")]
        names = lambda: self.cluster.kubectl(f"get {','.join(kinds)} -A --ignore-not-found -o name").split()
        ours = lambda: [name for name in names() if "tailwater" in name and "customresourcedefinition" not in name
                        and "rackserver" not in name]  # fmt: skip
        end = time.monotonic() + 60
        while ours() and time.monotonic() < end:
            time.sleep(1)
        return ours()


def run(cluster, arguments):
    """Carries out all steps, and prints what arrived meanwhile. Returns True if something is wrong."""
    steps = Steps(cluster, arguments)
    steps.begin()
    phases = []
    for what, act, longest in steps.all():
        if not re.search(arguments.steps, what):
            continue
        print(f"\n-- {what}", flush=True)
        began = time.time()
        act()
        steps.wait("packets arrive", lambda: last(steps.sink) > time.time() - 0.5)
        recovered = time.time() - began
        time.sleep(2)
        phases.append((what, began, time.time(), recovered, longest))
    cluster.kill("client", signal.SIGTERM)
    time.sleep(0.5)
    print()
    is_wrong = told(list(received(steps.sink)), phases, arguments)
    steps.uninstall()
    return is_wrong or bool(steps.wrong)
