"""How to reach one API server: address, TLS, credentials.

The kubernetes package reads kubeconfig files and the pod's service account; this module only asks it and turns the
result into what an aiohttp session needs. Only its configuration modules are used: the generated API and models cost
memory and lose data (spec/ecosystem 2.2).
"""

from __future__ import annotations

import asyncio
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from hami.core.errors import ConfigError, TransportError

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

_LOADER_ERRORS: Final = (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, yaml.YAMLError)
"""The loader reports broken files by whatever its next line happens to raise."""
_LOAD_TIMEOUT_S: Final = 60.0
"""An exec credential plugin that hangs must not hang the process."""


@dataclass(slots=True)
class Access:
    """Address and credentials of one API server. Build it with `load_access`, or by hand for a plain HTTP address."""

    server: str
    tls: ssl.SSLContext | None = None
    tls_server_name: str | None = None
    proxy: str | None = None
    _configuration: Configuration | None = None
    _kubeconfig: str | None = None

    async def authorization(self) -> str | None:
        """Value of the Authorization header, or None. A service account token is read again every minute.

        Raises TransportError while it cannot be read, for example in the middle of its rotation.
        """
        if self._configuration is None:
            return None
        from kubernetes.aio.config import ConfigException

        try:
            value = await self._configuration.get_api_key_with_prefix("BearerToken")
        except (ConfigException, OSError) as error:
            raise TransportError(f"{self.server}: credentials cannot be read: {error}") from error
        return str(value).strip() if value else None

    async def refresh(self) -> bool:
        """Reads the credentials again after a 401; False if there is nothing to read. Raises ConfigError.

        Covers exec plugins, rotated token files and rotated client certificates (those for new connections).
        """
        if self._kubeconfig is None:
            return False
        fresh = await _from_kubeconfig(self._kubeconfig)
        self._configuration = fresh
        if self.tls is not None and fresh.cert_file:
            try:
                await asyncio.to_thread(self.tls.load_cert_chain, fresh.cert_file, fresh.key_file)
            except (OSError, ValueError) as error:
                raise ConfigError(f"{self._kubeconfig}: certificates cannot be loaded: {error}") from error
        return True


async def load_access(kubeconfig: str | None) -> Access:
    """Address and credentials from `kubeconfig`; without one from the default file, else from the service account.

    The default file is `$KUBECONFIG` or `~/.kube/config`, as upstream resolves it (spec/node 1.1).
    Raises ConfigError with the file's name.
    """
    from kubernetes.aio.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION

    path = kubeconfig or KUBE_CONFIG_DEFAULT_LOCATION
    if kubeconfig or _any_file(path):
        configuration = await _from_kubeconfig(path)
    else:
        path = ""
        configuration = _in_cluster(KUBE_CONFIG_DEFAULT_LOCATION)
    return Access(
        server=str(configuration.host).rstrip("/"),
        tls=_tls_context(configuration, path or "service account"),
        tls_server_name=configuration.tls_server_name,
        proxy=configuration.proxy,
        _configuration=configuration,
        _kubeconfig=path or None,
    )


def context_namespace(kubeconfig: str | None) -> str:
    """The namespace of the kubeconfig's current context, as kubectl uses it; `default` if there is none."""
    from kubernetes.aio.config import ConfigException, list_kube_config_contexts
    from kubernetes.aio.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION

    path = kubeconfig or KUBE_CONFIG_DEFAULT_LOCATION
    if not _any_file(path):
        return "default"
    try:
        _, active = list_kube_config_contexts(path)  # type: ignore[no-untyped-call]
        return str(active["context"].get("namespace") or "default")
    except (ConfigException, *_LOADER_ERRORS):
        # A broken file is reported by `load_access`, which has to read it, too.
        return "default"


async def _from_kubeconfig(path: str) -> Configuration:
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.config import ConfigException, load_kube_config

    if not _any_file(path):
        raise ConfigError(f"kubeconfig {path}: no such file")
    configuration = Configuration()
    try:
        async with asyncio.timeout(_LOAD_TIMEOUT_S):
            await load_kube_config(  # type: ignore[no-untyped-call]
                config_file=path, client_configuration=configuration, persist_config=False
            )
    except TimeoutError as error:
        raise ConfigError(f"kubeconfig {path}: credentials not obtained within {_LOAD_TIMEOUT_S:.0f} s") from error
    except (ConfigException, *_LOADER_ERRORS) as error:
        raise ConfigError(f"kubeconfig {path}: {error}") from error
    return configuration


def _any_file(paths: str) -> bool:
    """Whether one of the files in a `$KUBECONFIG` list exists."""
    return any(Path(part).expanduser().is_file() for part in paths.split(os.pathsep) if part)


def _in_cluster(default_kubeconfig: str) -> Configuration:
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.config import ConfigException, load_incluster_config

    configuration = Configuration()
    try:
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError) as error:
        raise ConfigError(
            f"no way to the API server: {default_kubeconfig} does not exist and this is no pod with a service account"
            f" ({error}); pass --kubeconfig"
        ) from error
    return configuration


def _tls_context(configuration: Configuration, source: str) -> ssl.SSLContext | None:
    if not str(configuration.host).startswith("https"):
        return None
    try:
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source}: certificates cannot be loaded: {error}") from error
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
