"""Work at a low priority: children of the pipeline, which end with it, and long commands.

A child (`python -m lake.child_processes`) is told what makes its work, then one question after the
other: the words that the work is called with. Each is answered by what that returns or raises. All
of it are pickles, over pipes. At the end of its input it ends at once, also amid its work: somebody
else may do that by then.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from kernel.errors import EXIT_FAILED, EXIT_OK, PenstockError, Unavailable

NICENESS, SESSION_NICENESS = 10, 5
"""How far a child steps back as a process, and its session as a whole."""
_LOWEST = 19
_AGAIN_S, _TIMES = 0.11, 10
"""Linux lets a user set the priority of one session in a tenth of a second."""
_END_S = 10.0
Work = Callable[..., Any]


class Child:
    """A child that does one kind of work.

    It begins with the first question, and anew after one that it did not survive: what it keeps
    from one to the next is disposable. Safe for several threads, which take turns.
    """

    def __init__(self, made: Callable[[], Work]) -> None:
        """`made` makes the work, in the child: what it returns need not be picklable."""
        self._made = made
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, *words: object) -> Any:
        """Return what the work gives for some words.

        Raises what that raises, and `Unavailable` when the child ends amid it, or was told to.
        """
        with self._lock:
            try:
                process = self._running()
                _tell(process, words)
                done, said = pickle.load(_pipe(process.stdout))
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                why = self._end() or str(error) or "it was told to"
                raise Unavailable(f"a child process ended amid its work ({why})") from error
            except BaseException:
                # An answer that is still to come must not be taken for that of the next question.
                self.kill()
                self._end()
                raise
        if not done:
            raise said
        return said

    def kill(self) -> None:
        """End the child that there is; of any thread. Whoever waits for it gets an error."""
        process = self.process
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """End the child that there is, and have none begin any more; of any thread."""
        self._over.set()
        self.kill()

    def close(self) -> None:
        """End the child, and wait until it has ended."""
        self.kill()
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is not None and self.process.poll() is not None:
            self._end()  # It had nothing to do.
        begins = self.process is None
        if begins and not self._over.is_set():
            self.process = start_child()
        # Asked again behind the start: who stops meanwhile found no child to end.
        if self.process is None or self._over.is_set():
            self.kill()
            raise EOFError
        if begins:
            _tell(self.process, self._made)
        return self.process

    def _end(self) -> str:
        """Let go of the child, and say how it ended; nothing where there was none."""
        process, self.process = self.process, None
        if process is None:
            return ""
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # What was buffered for a child that is gone.
                _pipe(pipe).close()
        try:
            return f"exit code {process.wait(_END_S)}"
        except subprocess.TimeoutExpired:
            process.kill()
            return f"exit code {process.wait()}"


def start_child() -> subprocess.Popen[bytes]:
    """Start a child with pipes, at a low priority: it gets what is left.

    It has a session of its own. Where Linux shares processors between sessions first
    (`sched_autogroup_enabled`), niceness counts within one alone: what a child does in the
    pipeline's is taken from the pipeline, which then waits for its turn behind everybody else.
    """
    # -P: what lies in the working directory, a workspace, is not to be imported.
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "lake.child_processes"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        own = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, child.pid, own + NICENESS)
    except ProcessLookupError:
        return child  # It has ended already; its pipes will tell.
    _let_session_step_back(child.pid)
    return child


def _let_session_step_back(pid: int) -> None:
    """Have a session step back behind this one."""
    for _ in range(_TIMES):
        try:
            own = Path("/proc/self/autogroup").read_text()  # "/autogroup-25 nice 5"
            behind = min(_LOWEST, int(own.split()[-1]) + SESSION_NICENESS)
            Path(f"/proc/{pid}/autogroup").write_text(str(behind))
        except BlockingIOError:
            time.sleep(_AGAIN_S)
        except (OSError, IndexError):
            return  # There are no such groups here, or the child has ended.
        else:
            return


def step_back() -> None:
    """Let others go first where processors are short, as children here do, from now on.

    To be called before there are threads: these have priorities of their own.
    """
    os.nice(NICENESS)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None, "a child has pipes"
    return pipe


def _tell(process: subprocess.Popen[bytes], what: object) -> None:
    pickle.dump(what, _pipe(process.stdin), pickle.HIGHEST_PROTOCOL)
    _pipe(process.stdin).flush()


def main() -> None:
    """Answer one question after the other, until the input ends."""
    answers = _answers()
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(
        target=_receive, args=(sys.stdin.buffer, told), name="receive", daemon=True
    ).start()
    try:
        work = told.get()()
        while True:
            answers.write(answered(work, told.get()))
            answers.flush()
    except BaseException:
        # At once: the thread that reads would keep the interpreter from its end.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(EXIT_FAILED)


def _answers() -> IO[bytes]:
    """Return where answers are written; what else this process prints goes to its errors."""
    # Whoever interrupts means the parent, which says when it is over.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def _receive(given: IO[bytes], told: queue.SimpleQueue[Any]) -> None:
    """Take in what is told; end the process with its input, also amid its work."""
    code = EXIT_FAILED
    try:
        while True:
            told.put(pickle.load(given))
    except EOFError:
        code = EXIT_OK
    except Exception:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def answered(work: Work, words: tuple[Any, ...]) -> bytes:
    """Return the answer to a question: whether it was done, then what came of it."""
    try:
        return pickle.dumps((True, work(*words)), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        if not isinstance(error, PenstockError):
            traceback.print_exc()
        return _failed(error)


def _failed(error: Exception) -> bytes:
    try:
        said = pickle.dumps((False, error))
        pickle.loads(said)  # Errors of others are written down, and not always read again.
        return said
    except Exception:
        return pickle.dumps((False, Unavailable(f"a child process failed: {error!r}")))


if __name__ == "__main__":
    main()
