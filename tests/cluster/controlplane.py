"""etcd, kube-apiserver, kube-controller-manager and kube-schedulers as child processes on free loopback ports.

Ready in a few seconds, several can run side by side. Flags and their reasons: spec/cluster.md 2.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import ssl
import string
import subprocess
import urllib.request
from pathlib import Path

from tests.cluster.api import Api
from tests.cluster.build import Binaries
from tests.cluster.pki import Authority, Pair, write_key, write_public_key
from tests.cluster.processes import PATIENCE_S, NotReadyError, NotYetError, Process, free_ports, wait_until

MANIFESTS = Path(__file__).parent / "manifests"
SCHEDULER_NAME = "hami-scheduler"
SYSTEM_NAMESPACE = "hami-system"
MOST_RESTARTS = 3
BIND_TIMEOUT_S = 30
"""The chart's default of `scheduler.bindTimeoutSeconds`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ports:
    """Loopback ports of one control plane; those of our own components are fixed before anything starts."""

    etcd_client: int
    etcd_peer: int
    apiserver: int
    controller_manager: int
    default_scheduler: int
    hami_kube_scheduler: int
    extender: int

    @classmethod
    def free(cls) -> Ports:
        """Seven ports that nobody listens on."""
        return cls(*free_ports(len(dataclasses.fields(cls))))


@dataclasses.dataclass(frozen=True, slots=True)
class PodNetwork:
    """Where pods find the API server: the address that it advertises, and the range of services (its own is .1)."""

    address: str
    service_cidr: str
    api_service: str


class ControlPlane:
    """One control plane: the folder holds certificates, kubeconfigs, logs and etcd's state."""

    def __init__(
        self,
        binaries: Binaries,
        folder: Path,
        max_backoff_s: int = 10,
        pods: PodNetwork | None = None,
        with_hami: bool = True,
        bind_timeout_s: int = BIND_TIMEOUT_S,
    ) -> None:
        """`max_backoff_s`: how long kube-scheduler lets a pod wait after failures; its default is 10.
        `bind_timeout_s`: how long it waits for an answer to a filter or bind call.

        `pods`: the network of real pods and kubelets; without it everything is on loopback. `with_hami` off leaves out
        the kube-scheduler and the roles that stand for an installed chart.
        """
        self.max_backoff_s = max_backoff_s
        self.bind_timeout_s = bind_timeout_s
        self.pods = pods
        self.with_hami = with_hami
        self.binaries = binaries
        self.folder = folder
        self.ports = Ports.free()
        self.authority = Authority(folder / "pki")
        self.server = f"https://127.0.0.1:{self.ports.apiserver}"
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.admin_pair = self.authority.issue("admin", "admin", ["system:masters"])
        self.admin_kubeconfig = self.kubeconfig("admin", self.admin_pair)
        self.api = Api(self.server, self.authority.cert, self.admin_pair)
        self.etcd = self._etcd()
        self.apiserver = self._apiserver()
        self.controller_manager = self._controller_manager()
        self.default_scheduler = self._kube_scheduler("default-scheduler", self.ports.default_scheduler)
        self.hami_kube_scheduler = self._kube_scheduler(SCHEDULER_NAME, self.ports.hami_kube_scheduler)

    @property
    def extender_url(self) -> str:
        """Where the extender and the webhook of this cluster listen."""
        return f"https://127.0.0.1:{self.ports.extender}"

    def start(self) -> None:
        """Start everything and return when it is ready, with the system namespace and our roles in place."""
        self.start_api()
        self.controller_manager.start()
        self.default_scheduler.start()
        if self.with_hami:
            self.hami_kube_scheduler.start()
            self._install_roles()
        for process, port in (
            (self.controller_manager, self.ports.controller_manager),
            (self.default_scheduler, self.ports.default_scheduler),
            (self.hami_kube_scheduler, self.ports.hami_kube_scheduler),
        ):
            if process in self.processes():
                self._wait_up(process, f"https://127.0.0.1:{port}/healthz")
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        wait_until(lambda: self.api.exists(account), PATIENCE_S, "service account default")

    def start_api(self) -> None:
        """Start etcd and kube-apiserver only; return when that is ready."""
        self.etcd.start()
        self.apiserver.start()  # waits for etcd by itself
        self.wait_api()

    def wait_api(self) -> None:
        """Return when kube-apiserver, which was started, is ready."""
        self._wait_up(self.apiserver, f"{self.server}/readyz")

    def _wait_up(self, process: Process, url: str) -> None:
        """Return when `url` answers 200. What ends meanwhile is started again as kubelet does it, a few times: each of
        these gives up where the one that it needs lets it wait, on a machine that stands still for instance."""
        for _ in range(MOST_RESTARTS):
            try:
                self.wait_http(process, url, PATIENCE_S)
                return
            except NotReadyError:
                if process.alive:
                    raise
                process.start()
        self.wait_http(process, url, PATIENCE_S)

    def _install_roles(self) -> None:
        """The namespace and roles that the chart would make; those of an earlier start stay."""
        namespace = self.folder / "namespace.json"
        kind = {"apiVersion": "v1", "kind": "Namespace"}
        namespace.write_text(json.dumps({**kind, "metadata": {"name": SYSTEM_NAMESPACE}}))
        manifests = (namespace, MANIFESTS / "scheduler-rbac.yaml", MANIFESTS / "device-plugin-rbac.yaml")
        files = [f"--filename={manifest}" for manifest in manifests]
        wait_until(lambda: self.kubectl("apply", *files), PATIENCE_S, "our roles")

    def stop(self) -> None:
        """Kill everything: the state is thrown away, so nobody needs time to tidy up."""
        for process in reversed(self.processes()):
            process.kill()
        self.api.close()

    def processes(self) -> list[Process]:
        """Every process of the control plane, in the order of their start."""
        hami = [self.hami_kube_scheduler] if self.with_hami else []
        return [self.etcd, self.apiserver, self.controller_manager, self.default_scheduler, *hami]

    def kubeconfig(self, name: str, who: Pair | str, server: str | None = None) -> Path:
        """Write `<name>.kubeconfig` for an identity, of a text by token; `server` leads it through a proxy."""
        return self.authority.kubeconfig(self.folder / f"{name}.kubeconfig", server or self.server, who)

    def service_account_pair(self, account: str) -> Pair:
        """Certificate that makes its holder the service account, so that the chart's bindings apply to it."""
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{SYSTEM_NAMESPACE}", "system:authenticated"]
        return self.authority.issue(account, f"system:serviceaccount:{SYSTEM_NAMESPACE}:{account}", groups)

    def service_account_token(self, account: str) -> str:
        """A token as pods of the account have it. It costs kube-apiserver less than a certificate, which that checks
        anew with each request."""
        path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/{account}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        return str(self.api.post(path, asked)["status"]["token"])

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as admin and return its output; with `check` a failure raises KubectlError with its text."""
        command = [str(self.binaries.path("kubectl")), "--kubeconfig", str(self.admin_kubeconfig), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300, check=False)
        if check and done.returncode != 0:
            raise KubectlError(" ".join(arguments), done.stderr.strip())
        return done.stdout if done.returncode == 0 else done.stdout + done.stderr

    def kube_scheduler_config(self, kubeconfig: Path) -> Path:
        """The configuration that the chart gives kube-scheduler, with this cluster's extender in it."""
        values = {"EXTENDER_URL": self.extender_url, "KUBECONFIG": str(kubeconfig)}
        times = {"MAX_BACKOFF_S": str(self.max_backoff_s), "BIND_TIMEOUT_S": str(self.bind_timeout_s)}
        return self._render("kube-scheduler.yaml", **values, **times)

    def webhook_manifest(self, ca: Path, url: str | None = None) -> Path:
        """MutatingWebhookConfiguration by URL; `ca` signed the webhook's certificate."""
        bundle = base64.b64encode(ca.read_bytes()).decode()
        return self._render("webhook.yaml", WEBHOOK_URL=f"{url or self.extender_url}/webhook", CA_BUNDLE=bundle)

    def _render(self, name: str, **values: str) -> Path:
        rendered = self.folder / name
        rendered.write_text(string.Template((MANIFESTS / name).read_text()).substitute(values))
        return rendered

    def _process(self, component: str, *flags: str, name: str | None = None) -> Process:
        name = name or component
        return Process(name, [self.binaries.path(component), *flags], self.logs / f"{name}.log")

    def _etcd(self) -> Process:
        client = f"http://127.0.0.1:{self.ports.etcd_client}"
        peer = f"http://127.0.0.1:{self.ports.etcd_peer}"
        return self._process(
            "etcd",
            "--name=etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=etcd={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )

    def _apiserver(self) -> Process:
        serving = self.authority.issue("kube-apiserver", "kube-apiserver", hosts=self._api_hosts())
        account_key = self.folder / "pki" / "service-accounts.key"
        account_public = self.folder / "pki" / "service-accounts.pub"
        write_public_key(write_key(account_key), account_public)
        return self._process(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.ports.etcd_client}",
            f"--secure-port={self.ports.apiserver}",
            *self._reachability(),
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--client-ca-file={self.authority.cert}",
            f"--tls-cert-file={serving.cert}",
            f"--tls-private-key-file={serving.key}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={account_public}",
            f"--service-account-signing-key-file={account_key}",
            "--profiling=false",
            "--event-ttl=1h",
        )

    def _api_hosts(self) -> list[str]:
        """Names and addresses in the API server's certificate."""
        hosts = ["127.0.0.1", "localhost"]
        if self.pods is not None:
            service = ["kubernetes", "default", "svc", "cluster", "local"]
            hosts += [".".join(service[:length]) for length in range(1, len(service) + 1)]
            hosts += [self.pods.address, self.pods.api_service]
        return hosts

    def _reachability(self) -> list[str]:
        """Flags that decide who reaches the API server, and how it reaches kubelets."""
        if self.pods is None:
            # No pod reaches the API server here, so nobody needs the endpoints that a loopback address cannot give.
            loopback = ["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"]
            return [*loopback, "--service-cluster-ip-range=10.0.0.0/24"]
        to_kubelet = self.authority.issue("apiserver-to-kubelet", "kube-apiserver-kubelet-client", ["system:masters"])
        front_proxy = self.authority.issue("front-proxy", "front-proxy-client")
        return [
            "--bind-address=0.0.0.0",
            f"--advertise-address={self.pods.address}",
            f"--service-cluster-ip-range={self.pods.service_cidr}",
            f"--kubelet-client-certificate={to_kubelet.cert}",
            f"--kubelet-client-key={to_kubelet.key}",
            f"--kubelet-certificate-authority={self.authority.cert}",
            "--kubelet-preferred-address-types=InternalIP",
            # Servers in pods that let the API server say who calls them read these from a ConfigMap.
            f"--requestheader-client-ca-file={self.authority.cert}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={front_proxy.cert}",
            f"--proxy-client-key-file={front_proxy.key}",
        ]

    def _controller_manager(self) -> Process:
        pair = self.authority.issue("controller-manager", "system:kube-controller-manager")
        return self._process(
            "kube-controller-manager",
            *self._delegated("controller-manager", pair, self.ports.controller_manager),
            "--use-service-account-credentials=true",
            f"--root-ca-file={self.authority.cert}",
            f"--service-account-private-key-file={self.folder / 'pki' / 'service-accounts.key'}",
            # The kubelet stand-ins need not renew leases: no node turns Unknown while a test runs.
            "--node-monitor-grace-period=3600s",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            "--profiling=false",
        )

    def _kube_scheduler(self, name: str, port: int) -> Process:
        pair = self.authority.issue(f"kube-{name}", "system:kube-scheduler")
        flags = [*self._delegated(f"kube-{name}", pair, port), "--profiling=false", "-v=2"]
        if name == SCHEDULER_NAME:
            config = self.kube_scheduler_config(self.folder / f"kube-{name}.kubeconfig")
            flags = [flag for flag in flags if not flag.startswith(("--kubeconfig", "--leader-elect"))]
            flags.append(f"--config={config}")
        return self._process("kube-scheduler", *flags, name=f"kube-scheduler-{name}")

    def _delegated(self, name: str, pair: Pair, port: int) -> list[str]:
        """Flags that controller-manager and kube-scheduler share."""
        kubeconfig = self.kubeconfig(name, pair)
        return [
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            "--leader-elect=false",
        ]

    def wait_http(self, process: Process, url: str, timeout_s: float) -> None:
        """Return when `url` answers 200; NotReadyError when the process ends or the time is over."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # health of self-signed serving certificates; no secret is sent

        def ready() -> bool:
            process.require_alive()
            with urllib.request.urlopen(url, timeout=5, context=context) as response:
                return bool(response.status == 200)  # HTTP OK

        wait_until(ready, timeout_s, f"{process.name} at {url}")


class KubectlError(NotYetError):
    """kubectl exited with an error; the text is what the person would have read."""

    def __init__(self, arguments: str, stderr: str) -> None:
        super().__init__(f"kubectl {arguments}: {stderr}")
        self.stderr = stderr
