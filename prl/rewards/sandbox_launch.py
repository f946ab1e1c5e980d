"""The process between prl and a candidate program: it shuts the program in, waits for it, and says how it ended.

Run as a script, isolated from the environment, importing nothing of prl: what it needs must still be there once the
file system is hidden. The command line is the parent's pid, the isolation, the limits as JSON and the descriptor to
report to; stdin is a JSON object with ``program``, ``input`` and ``work``, the folder to work in where it has limits
alone.

With ``namespace`` the program has a user, a network, a process table, an IPC space and a file system of its own:

- another user than this process's, without a capability, also where prl runs as root;
- no network device but a loopback that is down, and no socket of the host below /tmp and /run, which are hidden;
- every file system read-only, but for a small one in memory, its working directory, which goes with it. What the user
  who runs prl may read, it may read (where that is root: what everybody may);
- no process of the host can be seen or signalled, and when the program ends the kernel kills whatever it started.

With ``limits`` it has the limits alone. What it started is found and killed when it ends, also in sessions of its own,
unless it kills the process that does this, which is its user's.

The report is ``isolated``, then ``exit N`` or ``signal N`` and the seconds of processor time that it used; one that
does not begin so means that nothing was run. Its end says that no process of the program is left.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_NEW_MOUNTS, _NEW_UTS, _NEW_IPC, _NEW_USER, _NEW_PIDS, _NEW_NET = (
    0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_NOSUID, _NODEV, _NOEXEC, _BIND, _RECURSIVE, _PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = 442, -100, 0x8000, 1
_NOBODY = 65534
_INSIDE_ID = 1000
_MOST_SWEEPS = 1000
_HIDDEN = "/tmp"  # noqa: S108 - a file system of its own stands there
PYTHON, WORK = f"{_HIDDEN}/python", f"{_HIDDEN}/work"


def main() -> None:
    """Shut in, run, wait, report."""
    parent, isolation, limits, report = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
    _die_with(parent)
    asked = json.loads(sys.stdin.buffer.read())
    try:
        interpreter, work = _shut_in(limits) if isolation == "namespace" else (sys.executable, asked["work"])
    except OSError as error:
        os.write(report, f"failed {error.strerror}: {error.filename}\n".encode())
        sys.exit(1)
    _die_with(parent)  # once more: another user is not told of the parent's death
    launcher = os.getpid()
    init = os.fork()
    if init == 0:
        if isolation == "namespace":
            _die_with(0)
        else:
            _reap_all(launcher)
        _supervise((isolation, interpreter, work), limits, report, asked)
    os.waitpid(init, 0)


def _supervise(place: tuple[str, str, str], limits: dict, report: int, asked: dict) -> None:  # type: ignore[type-arg]
    """The first process of the new table: run the program, report, and take everything along by ending."""
    isolation, interpreter, work = place
    if isolation == "namespace":
        try:
            _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
        except OSError:  # not allowed where the host's is partly covered: then there is none
            _mount("tmpfs", "/proc", "tmpfs", _NOSUID | _NODEV | _NOEXEC, "size=4k")
    os.chdir(work)
    program = os.path.join(work, "program.py")  # noqa: PTH118 - pathlib would be one import more in each launch
    with open(program, "w") as file:  # noqa: PTH123 - the same
        file.write(asked["program"])
    given = os.open(work, os.O_TMPFILE | os.O_RDWR, 0o600)
    with open(given, "wb", closefd=False) as file:  # what does not fit raises, and is not cut
        file.write(asked["input"].encode())
    os.lseek(given, 0, os.SEEK_SET)
    os.write(report, b"isolated\n")
    child = os.fork()
    if child == 0:
        os.dup2(given, 0)
        os.closerange(3, max(256, report + 1))
        _limit(limits)
        _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        environment = {"PATH": "/usr/bin:/bin", "HOME": work, "TMPDIR": work, "PYTHONDONTWRITEBYTECODE": "1"}
        os.execve(interpreter, [interpreter, "-I", "-B", program], environment)  # noqa: S606 - that is the purpose
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    how = f"exit {code}" if code >= 0 else f"signal {-code}"
    os.write(report, f"{how} {used.ru_utime + used.ru_stime:.3f}\n".encode())
    if isolation != "namespace":
        _sweep()
    os._exit(0)


def _reap_all(launcher: int) -> None:
    """Become the one whose children all orphans of the program are; at the launcher's death, end them all."""
    os.setsid()  # who kills the launcher's group leaves this process to do its work
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, _end)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != launcher:
        os._exit(1)


def _end(*_: object) -> None:
    _sweep()
    os._exit(1)


def _sweep() -> None:
    """Kill what descends from this process until nothing does."""
    for _ in range(_MOST_SWEEPS):
        for pid in _descendants():
            try:  # noqa: SIM105 - contextlib would be one import more in each launch
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib would be one import more in each launch
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:  # noqa: PTH123 - the same
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def _shut_in(limits: dict) -> tuple[str, str]:  # type: ignore[type-arg]
    """Enter the namespaces; the interpreter and the working directory in there. Raises OSError."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    spaces = _NEW_USER | _NEW_MOUNTS | _NEW_NET | _NEW_PIDS | _NEW_IPC | _NEW_UTS
    if os.geteuid() == 0:  # a mapped root would still be exempt from the limit of processes
        _unshare(_NEW_MOUNTS)
        _hide()
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        _LIBC.prctl(4, 1, 0, 0, 0)  # dumpable again, or /proc/self belongs to root
        _enter(spaces)
    else:
        _enter(spaces)
        _hide()
    _read_only("/")
    _mount("tmpfs", WORK, "tmpfs", _NOSUID | _NODEV, f"size={limits['disk_mib']}m,mode=700,nr_inodes=4096")
    return f"{PYTHON}/bin/{version}", WORK


def _enter(spaces: int) -> None:
    uid, gid = os.geteuid(), os.getegid()
    _unshare(spaces)
    maps = (("setgroups", "deny"), ("uid_map", f"{_INSIDE_ID} {uid} 1"), ("gid_map", f"{_INSIDE_ID} {gid} 1"))
    for name, line in maps:
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - pathlib would be one import more
            file.write(line)


def _hide() -> None:
    """An empty file system over /tmp, with the interpreter in it, and another over /run."""
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    base = os.open(sys.base_prefix, os.O_PATH | os.O_DIRECTORY)  # it may be under what is hidden next
    _mount("tmpfs", _HIDDEN, "tmpfs", _NOSUID | _NODEV, "size=64k,mode=755")
    if os.path.isdir("/run"):  # noqa: PTH112 - the same
        _mount("tmpfs", "/run", "tmpfs", _NOSUID | _NODEV | _NOEXEC, "size=4k,mode=755")
    os.mkdir(PYTHON)  # noqa: PTH102 - the same
    os.mkdir(WORK, 0o777)  # noqa: PTH102 - the same
    _mount(f"/proc/self/fd/{base}", PYTHON, None, _BIND | _RECURSIVE)


def _limit(limits: dict) -> None:  # type: ignore[type-arg]
    mib = 1024 * 1024
    for what, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, limits["memory_mib"] * mib),
        (resource.RLIMIT_FSIZE, limits["disk_mib"] * mib),
        (resource.RLIMIT_NPROC, limits["num_processes"]),
        (resource.RLIMIT_NOFILE, 64),
    ):
        resource.setrlimit(what, (value, value))
    cpu_s = limits["cpu_s"]  # SIGXCPU, and a second later SIGKILL for those that do not heed it
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))


def _die_with(parent: int) -> None:
    """``parent`` is 0 where it is in another process table."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _unshare(spaces: int) -> None:
    if _LIBC.unshare(spaces) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "new namespaces")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    kind_bytes = None if kind is None else kind.encode()
    if _LIBC.mount(source.encode(), target.encode(), kind_bytes, ctypes.c_ulong(flags), options.encode() or None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), f"mount on {target}")


def _read_only(path: str) -> None:
    class Attributes(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user")]

    wanted = Attributes(_ATTR_RDONLY, 0, 0, 0)
    arguments = (_AT_FDCWD, path.encode(), _AT_RECURSIVE, ctypes.byref(wanted), ctypes.sizeof(wanted))
    if _LIBC.syscall(_SYS_MOUNT_SETATTR, *arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), f"read-only {path}")


if __name__ == "__main__":
    main()
