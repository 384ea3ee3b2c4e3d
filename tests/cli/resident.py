"""Runs the program without loading its libraries each time: it waits, loaded, and forks for each command
(resident.cc)."""

import array
import atexit
import os
import signal
import socket
import subprocess
import tempfile

LIBRARY = os.environ.get("PARADYSE_RESIDENT")  # without one, commands are programs of their own


class Resident:
    def __init__(self, program, preload=()):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [program], pass_fds=[theirs.fileno()],
                env={**os.environ, "LD_PRELOAD": " ".join([LIBRARY, *preload]),
                     "PARADYSE_RESIDENT_SOCKET": str(theirs.fileno())})

    def number(self):
        """The next that it answers."""
        numbers = array.array("i", self.socket.recv(4))
        if not numbers:
            raise RuntimeError(f"{self.process.args[0]} ended")
        return numbers[0]

    def run(self, command, timeout, variables):
        """As subprocess.run does, with its output as text."""
        strings = [os.getcwd(), *command, "", *(f"{name}={value}" for name, value in variables.items())]
        with (open(os.devnull) as nothing, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors):
            socket.send_fds(self.socket, ["\0".join(strings).encode() + b"\0"],
                            [nothing.fileno(), out.fileno(), errors.fileno()])
            process = self.number()
            try:
                self.socket.settimeout(timeout)
                status = self.number()
            except TimeoutError:
                os.kill(process, signal.SIGKILL)
                self.socket.settimeout(None)
                self.number()
                raise subprocess.TimeoutExpired(command, timeout) from None
            finally:
                self.socket.settimeout(None)
            texts = []
            for file in (out, errors):
                file.seek(0)
                texts.append(file.read().decode())
        return subprocess.CompletedProcess(command, os.waitstatus_to_exitcode(status), *texts)

    def end(self):
        self.socket.close()
        self.process.wait(timeout=60)


residents = {}  # by program


def run(command, timeout, **variables):
    """`variables`: more environment."""
    if LIBRARY is None or "" in command or variables:  # variables may matter while libraries are loaded
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **variables})
    program = command[0]
    if program not in residents:
        residents[program] = Resident(program)
        atexit.register(residents[program].end)
    return residents[program].run(command, timeout, os.environ)
