"""A standalone cluster of Spark on loopback: a master and workers as processes of their own.

It runs from the installed PySpark. Workers know nothing of the checkout: they work in a folder of
their own, and their Python has the packages of this environment, but not Penstock.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

from stack.java import find_java
from tests.support.services.port_blocks import PortBlock
from tests.support.services.waiting import until

BACKEND = "CoarseGrainedExecutorBackend"
MASTER_PORT = PortBlock.WARM + 420
_DEPLOY = "org.apache.spark.deploy"
_HOME = Path(pyspark.__file__).parent


@dataclass
class SparkCluster:
    """A master and its workers, each with one core. `stop` ends all of them."""

    folder: Path
    port: int = MASTER_PORT
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _master: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What `spark.master` is set to."""
        return f"spark://127.0.0.1:{self.port}"

    @property
    def python(self) -> Path:
        """The interpreter of the workers."""
        return self.folder / "python" / "bin" / "python"

    @property
    def settings(self) -> Mapping[str, str]:
        """Return what a session on this cluster is started with, beside the master."""
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "640m",
            "spark.pyspark.python": str(self.python),
        }

    def start(self, workers: int = 2) -> None:
        """Start the master and some workers; returns when these are registered."""
        self.folder.mkdir(parents=True, exist_ok=True)
        make_python(self.folder / "python")
        own = ("--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.port + 1))
        self._master = self._run("master", f"{_DEPLOY}.master.Master", *own)
        until(lambda: _listens(self.port), "the master listens")
        for _ in range(workers):
            self.add_worker()

    def add_worker(self) -> None:
        """Start one more worker."""
        number = len(self.workers)
        own = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0")
        work = ("--work-dir", str(self.folder / f"work-{number}"))
        name = f"worker-{number}"
        self.workers.append(self._run(name, f"{_DEPLOY}.worker.Worker", *own, *work, self.url))
        registered = "Successfully registered with master"
        until(lambda: registered in self.log_of(name), f"{name} is registered")

    def log_of(self, name: str) -> str:
        """Return what a process has written."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def executors(self) -> list[psutil.Process]:
        """Return the executors that run, of all applications."""
        found: list[psutil.Process] = []
        for worker in self.workers:
            if worker.poll() is None:
                children = psutil.Process(worker.pid).children(recursive=True)
                found += [each for each in children if BACKEND in _words_of(each)]
        return found

    def kill_executor(self) -> bool:
        """Kill one executor with -9, its Python processes with it; return whether there was one."""
        for executor in self.executors():
            _kill(executor)
            return True
        return False

    def kill_worker(self) -> None:
        """Kill the first worker that runs, with its executors."""
        worker = next(each for each in self.workers if each.poll() is None)
        _kill(psutil.Process(worker.pid))
        worker.wait()

    def stop(self) -> None:
        """End everything, and remove what it wrote."""
        running = [each for each in (*self.workers, self._master) if each is not None]
        for process in running:
            if process.poll() is None:
                _kill(psutil.Process(process.pid))
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, name: str, program: str, *words: str) -> subprocess.Popen[bytes]:
        java = find_java()
        environ = {
            **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            "JAVA_HOME": str(java.home),
            "SPARK_HOME": str(_HOME),
            "SPARK_SCALA_VERSION": _scala_version(),
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        # An application is given up only when so many executors die one after the other.
        options = ("-Xmx192m", "-XX:+UseSerialGC", "-Dspark.deploy.maxExecutorRetries=50")
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [java.binary, *options, "-cp", f"{_HOME / 'jars'}/*", program, *words],
                cwd=self.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


def make_python(folder: Path) -> None:
    """Make an environment that has the installed packages, but none that lies in a checkout.

    A path file of an environment is not followed to those of another one, and it is by such a file
    that an editable installation is found.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")


def _scala_version() -> str:
    """Return the version that Spark's jars were built for, which workers ask for by this name."""
    (library,) = (_HOME / "jars").glob("spark-core_*.jar")
    return library.name.removeprefix("spark-core_").partition("-")[0]


def _kill(process: psutil.Process) -> None:
    for each in (process, *process.children(recursive=True)):
        try:
            each.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue


def _words_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
