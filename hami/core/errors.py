"""The error tree.

HamiError
├── DecodeError        a text on the wire cannot be read (annotation, register, token)
├── ConfigError        a setting is wrong; names the key, the value and what is allowed
├── ApiError           kube-apiserver answered with a failure
│   ├── NotFoundError      404
│   ├── ConflictError      409
│   ├── GoneError          410, the watch has to list again
│   └── InvalidError       422
├── TransportError     kube-apiserver was not reached or did not answer in time
├── AllocateError      kubelet's Allocate cannot be served
├── NvmlError          NVML answered with a failure or not in time
│   └── DriverReplacedError   the driver was exchanged under this process
└── CertificateError   a certificate or key cannot be made or loaded
"""


class HamiError(Exception):
    """Root of every error that hami raises on purpose."""


class DecodeError(HamiError):
    """A text on the wire cannot be read.

    `subject` says what was read ("node n1 annotation hami.io/node-nvidia-register"), `problem` says what is wrong.
    """

    def __init__(self, subject: str, problem: str) -> None:
        super().__init__(f"{subject}: {problem}")
        self.subject = subject
        self.problem = problem


class ConfigError(HamiError):
    """A setting is wrong. The message names the key, the value and what is allowed."""


class ApiError(HamiError):
    """kube-apiserver answered with a failure: HTTP `status`, Kubernetes `reason`, `message`."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message or reason or f"HTTP {status}")
        self.status = status
        self.reason = reason
        self.message = message or reason or f"HTTP {status}"
        self.retry_after_s = retry_after_s


class NotFoundError(ApiError):
    """404: the object does not exist."""


class ConflictError(ApiError):
    """409: a precondition (uid, resourceVersion) failed, or the pod is bound already."""


class GoneError(ApiError):
    """410: the requested resourceVersion is too old; list again."""


class InvalidError(ApiError):
    """422: the API server found the object or the patch wrong."""


class TransportError(HamiError):
    """kube-apiserver was not reached or did not answer in time; the write may or may not have happened."""


class AllocateError(HamiError):
    """Kubelet's Allocate cannot be served; the text tells the pod's owner what to do."""


class NvmlError(HamiError):
    """NVML answered with a failure, or not within its time limit."""


class DriverReplacedError(NvmlError):
    """The driver is another version than its library that this process has loaded: only a new process can go on."""


class CertificateError(HamiError):
    """A certificate or key cannot be made or loaded."""
