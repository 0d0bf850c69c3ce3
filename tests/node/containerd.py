"""containerd with its state in a folder of the run: started, killed, restarted, and fed with images from files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.cluster.processes import Process, wait_until
from tests.node.tools import Tools

CONFIGURATION = """\
version = 3
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{sandbox_image}"
[plugins."io.containerd.cri.v1.runtime"]
  # Without CAP_SYS_RESOURCE a lower score than the parent's is refused, and runc dies of it.
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["{cdi_folder}"]
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{cni_plugins}"]
    conf_dir = "{cni_folder}"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
{runtimes}
"""
RUNTIME = """\
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}.options]
        SystemdCgroup = false
"""
CDI_FOLDER = Path("/var/run/cdi")
"""One of containerd's own two defaults, and our plugin's; `tests.node.namespace` empties it. /etc is the machine's."""
RUNTIMES = ("runc", "nvidia")
READY_S = 30
CTR_TIMEOUT_S = 120


class Containerd:
    """The container runtime of the node. `socket` is what kubelet connects to."""

    def __init__(self, programs: Path, tools: Tools, folder: Path, cni_folder: Path, sandbox_image: str) -> None:
        """`programs`: folder of `runtime.build`; `tools` has runc and the CNI plugins."""
        self._ctr = programs / "ctr"
        self._env = tools.environment()
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.socket = folder / "containerd.sock"
        configuration = folder / "config.toml"
        configuration.write_text(
            CONFIGURATION.format(
                folder=folder,
                socket=self.socket,
                sandbox_image=sandbox_image,
                cdi_folder=CDI_FOLDER,
                cni_plugins=tools.cni_plugins,
                cni_folder=cni_folder,
                runtimes="".join(RUNTIME.format(name=name) for name in RUNTIMES),
            )
        )
        command: list[str | Path] = [programs / "containerd", "--config", configuration]
        self.process = Process("containerd", command, folder / "containerd.log", self._env)

    def start(self) -> None:
        """Start and return when it answers. Containers of an earlier life are found again."""
        self.process.start()
        wait_until(self._answers, READY_S, "containerd answers")

    def import_image(self, archive: Path) -> None:
        """Load an OCI or docker archive under the name that it carries."""
        self.ctr("images", "import", str(archive))

    def running_tasks(self) -> list[str]:
        """Ids of containers and sandboxes whose process runs."""
        lines = self.ctr("tasks", "list").splitlines()[1:]
        return [line.split()[0] for line in lines if line.split()[-1] == "RUNNING"]

    def kill_containers(self) -> None:
        """End every container at once, as a power cut does; the records stay."""
        for task in self.running_tasks():
            self.ctr("tasks", "kill", "--signal", "SIGKILL", "--all", task, check=False)
        wait_until(lambda: not self.running_tasks(), READY_S, "all containers ended")

    def ctr(self, *arguments: str, check: bool = True) -> str:
        """Run `ctr` in kubelet's namespace and return its output; OSError with what it said when it fails."""
        command = [str(self._ctr), "--address", str(self.socket), "--namespace", "k8s.io", *arguments]
        done = subprocess.run(
            command, env=self._env, capture_output=True, text=True, timeout=CTR_TIMEOUT_S, check=False
        )
        if check and done.returncode != 0:
            raise OSError(f"ctr {' '.join(arguments)}: {done.stderr.strip()[-1000:]}")
        return done.stdout

    def forget(self) -> None:
        """Remove all state; only when it is stopped."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        self.process.require_alive()
        return bool(self.ctr("version"))
