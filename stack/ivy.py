"""Fetch artefacts with the Ivy that PySpark carries: no Maven, no host name, one mirror setting.

Ivy keeps what it has fetched, so an interrupted run goes on where it stopped, file by file.
"""

from __future__ import annotations

import importlib.util
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import quoteattr

from kernel.errors import Misconfigured, Unavailable
from stack.java import Java
from stack.lock import Artifact
from stack.truststore import certificates_from_environment, write_truststore

_RETRIEVE = "[conf]/[artifact]-[revision](-[classifier]).[ext]"
_UNTRUSTED = ("PKIX path", "SSLHandshakeException", "unable to find valid certification")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """One run of Ivy: what to fetch, where to keep it, and how the outside is reached."""

    java: Java
    folder: Path
    mirror: str | None = None
    environ: Mapping[str, str]

    def run(self, artifacts: Sequence[Artifact], *, on_tick: Callable[[], None]) -> Path:
        """Fetch `artifacts`; return the folder that holds `<group>/<file>`.

        `on_tick` is called about five times a second meanwhile. Raises `Unavailable` with Ivy's
        own complaint when something cannot be had.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / "settings.xml"
        settings.write_text(_settings(self.folder / "store", self.mirror))
        module = self.folder / "module.xml"
        module.write_text(_module(artifacts))
        output = ""
        for options in self._trust_options():
            code, output = self._ivy(settings, module, options, on_tick)
            if code == 0:
                return self.folder / "retrieved"
            if not any(sign in output for sign in _UNTRUSTED):
                break
        raise _failure(output)

    def _trust_options(self) -> list[list[str]]:
        """Company certificates first; should they not do, what the Java itself trusts."""
        certificates = certificates_from_environment(self.environ)
        if not certificates:
            return [[]]
        store = self.folder / "trust.p12"
        write_truststore(store, certificates)
        ours = [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=PKCS12"]
        return [ours, []]

    def _ivy(
        self, settings: Path, module: Path, options: list[str], on_tick: Callable[[], None]
    ) -> tuple[int, str]:
        arguments = self.folder / "arguments"
        # Proxies carry passwords: they go through a private file, never the command line.
        arguments.touch(mode=0o600)
        arguments.write_text("".join(f"{_argument(o)}\n" for o in proxy_options(self.environ)))
        command = [
            str(self.java.binary),
            f"@{arguments}",
            "-Xmx256m",
            "-XX:TieredStopAtLevel=1",
            *options,
            *("-cp", str(ivy_jar()), "org.apache.ivy.Main"),
            *("-settings", str(settings), "-ivy", str(module)),
            *("-retrieve", f"{self.folder / 'retrieved'}/{_RETRIEVE}"),
        ]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            lines: list[str] = []
            reader = threading.Thread(target=_drain, args=(process.stdout, lines), daemon=True)
            reader.start()
            try:
                while True:
                    try:
                        process.wait(timeout=0.2)
                        break
                    except subprocess.TimeoutExpired:
                        on_tick()
            except BaseException:
                process.kill()
                raise
            reader.join()
        return process.returncode, "".join(lines)


def ivy_jar() -> Path:
    """Return the Ivy that lies in PySpark's jars."""
    spec = importlib.util.find_spec("pyspark")
    folders = spec.submodule_search_locations if spec is not None else None
    found = sorted(Path(next(iter(folders))).glob("jars/ivy-2*.jar")) if folders else []
    if not found:
        raise Misconfigured(
            "PySpark's jars folder has no Ivy", remedy="Install it again: pip install pyspark"
        )
    return found[-1]


def _drain(stream: Iterable[str] | None, lines: list[str]) -> None:
    lines.extend(stream or ())


def _settings(store: Path, mirror: str | None) -> str:
    # Without POMs: they name parents that some mirrors do not serve, and the list is complete.
    root = f" root={quoteattr(mirror)}" if mirror else ""
    return (
        '<ivysettings><settings defaultResolver="central"/>'
        f"<caches defaultCacheDir={quoteattr(str(store))}/>"
        f'<resolvers><ibiblio name="central" m2compatible="true" usepoms="false"'
        f' useMavenMetadata="false"{root}/></resolvers></ivysettings>'
    )


def _module(artifacts: Sequence[Artifact]) -> str:
    groups = sorted({artifact.group for artifact in artifacts})
    configurations = "".join(f'<conf name="{group}"/>' for group in groups)
    return (
        '<ivy-module version="2.0" xmlns:e="http://ant.apache.org/ivy/extra">'
        '<info organisation="penstock" module="stack"/>'
        f"<configurations>{configurations}</configurations>"
        f"<dependencies>{''.join(map(_dependency, artifacts))}</dependencies></ivy-module>"
    )


def _dependency(artifact: Artifact) -> str:
    classifier = f' e:classifier="{artifact.classifier}"' if artifact.classifier else ""
    return (
        f'<dependency org="{artifact.organisation}" name="{artifact.name}"'
        f' rev="{artifact.revision}" conf="{artifact.group}->default" transitive="false">'
        f'<artifact name="{artifact.name}" type="{artifact.extension}"'
        f' ext="{artifact.extension}"{classifier}/></dependency>'
    )


def proxy_options(environ: Mapping[str, str]) -> list[str]:
    """Translate HTTPS_PROXY, HTTP_PROXY and NO_PROXY to what a JVM reads."""
    options: list[str] = []
    for scheme in ("https", "http"):
        address = environ.get(f"{scheme.upper()}_PROXY") or environ.get(f"{scheme}_proxy")
        if not address:
            continue
        parts = urlsplit(address if "//" in address else f"//{address}")
        if parts.hostname is None:
            raise Misconfigured(f"{scheme.upper()}_PROXY is not an address: {address!r}")
        options.append(f"-D{scheme}.proxyHost={parts.hostname}")
        options.append(f"-D{scheme}.proxyPort={parts.port or 3128}")
        if parts.username:
            # Java refuses Basic credentials for tunnels unless told otherwise.
            options.append("-Djdk.http.auth.tunneling.disabledSchemes=")
            options.append(f"-Dhttp.proxyUser={unquote(parts.username)}")
            options.append(f"-Dhttp.proxyPassword={unquote(parts.password or '')}")
    direct = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    hosts = [host.strip() for host in direct.split(",") if host.strip()]
    if options and hosts:
        patterns = [f"*{host}" if host.startswith(".") else host for host in hosts]
        options.append(f"-Dhttp.nonProxyHosts={'|'.join(patterns)}")
    return options


def _argument(option: str) -> str:
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _failure(output: str) -> Unavailable:
    signs = ("FAILED", "Exception", "not found", "Server access", "UNRESOLVED", "timed out")
    complaints = [line.strip() for line in output.splitlines() if any(s in line for s in signs)]
    detail = "; ".join(dict.fromkeys(complaints[:4])) or output.strip()[-300:]
    remedy = (
        "Check the network, or set HTTPS_PROXY (and SSL_CERT_FILE for a company's certificate), or"
        " PENSTOCK_MIRROR to your company's Maven mirror; then run it again: it goes on where it"
        " stopped."
    )
    if any(sign in output for sign in _UNTRUSTED):
        remedy = (
            "The certificate is not trusted: set SSL_CERT_FILE to a PEM file with your company's"
            " authority, then run it again."
        )
    return Unavailable(f"jars could not be fetched: {detail}", remedy=remedy)
