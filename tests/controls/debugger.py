"""Calls functions in a running process, as a debugger does. The process is stopped wherever it is, its main thread runs
the function, and goes on as if nothing had been.

gdb itself is not enough: before version 14 it cannot write the registers of processors with AMX, so it calls nothing
there, and the process that it leaves dies. x86-64 only.

    debugger.py PID LIBRARY FUNCTION [ARGUMENT...] [-- LIBRARY FUNCTION [ARGUMENT...]]...

makes these calls one after the other and prints what each returns. An argument is a number, the result of an earlier
call (`$1`: the first), what a variable holds (`libc:stdout`), or else a string.
"""
import ctypes, os, re, signal, struct, subprocess, sys

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.restype = ctypes.c_long
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
CONT, DETACH, GETREGSET, SETREGSET, SEIZE, INTERRUPT = 7, 17, 0x4204, 0x4205, 0x4206, 0x4207
# Sets of registers, and a limit on their size: AMX alone has 8 KiB.
GENERAL, EXTENDED, MOST = 1, 0x202, 1 << 16
# struct user_regs_struct: 27 words, with these indices.
RAX, RDX, RSI, RDI, CALL, RIP, RSP = 10, 12, 13, 14, 15, 16, 19
ARGUMENTS = (RDI, RSI, RDX)


def ptrace(request, pid, address=None, data=None):
    if LIBC.ptrace(request, pid, address, data) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace request {request:#x} for process {pid}: {os.strerror(number)}")


def find(pid, library, name):
    """The address of a function or variable of a library in that process."""
    for line in open(f"/proc/{pid}/maps"):
        field = line.split(maxsplit=5)
        path = field[5].strip() if len(field) == 6 else ""
        if re.match(re.escape(library) + r"[-.\d]*\.so", os.path.basename(path)):
            table = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True)
            found = re.search(rf"^([0-9a-f]+) \w {re.escape(name)}(@@\S+)?$", table.stdout, re.M)
            if not found:
                raise SystemExit(f"{path} has no symbol {name}")
            return int(field[0].split("-")[0], 16) + int(found[1], 16)
    raise SystemExit(f"process {pid} has no library {library}")


class Stopped:
    """A process whose main thread is stopped while this is used."""

    def __init__(self, pid):
        self.pid = pid
        ptrace(SEIZE, pid)
        ptrace(INTERRUPT, pid)
        # Signals that arrive before the stop are passed on to the program.
        while (status := self.wait()) >> 16 != 128:
            ptrace(CONT, pid, None, status >> 8 & 0xFF)
        self.memory = open(f"/proc/{pid}/mem", "r+b", buffering=0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.memory.close()
        ptrace(DETACH, self.pid)

    def wait(self):
        _, status = os.waitpid(self.pid, 0x40000000)
        if not os.WIFSTOPPED(status):
            raise SystemExit(f"process {self.pid} ended with status {status:#x}")
        return status

    def registers(self, kind, new=None):
        buffer = ctypes.create_string_buffer(new or bytes(MOST), len(new or bytes(MOST)))
        vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), len(buffer))
        ptrace(SETREGSET if new else GETREGSET, self.pid, kind, ctypes.addressof(vector))
        return buffer.raw[:vector[1]]

    def read(self, address):
        self.memory.seek(address)
        return struct.unpack("Q", self.memory.read(8))[0]

    def call(self, address, *arguments):
        """Calls the function with at most three arguments, and returns the result register."""
        kept = self.registers(GENERAL), self.registers(EXTENDED)
        words = list(struct.unpack("27Q", kept[0]))
        # Below the red zone; the function returns to address 0, where nothing is mapped, and so stops.
        top = words[RSP] - 256
        for register, argument in zip(ARGUMENTS, arguments):
            if isinstance(argument, str):
                data = argument.encode() + b"\0"
                top -= len(data)
                self.memory.seek(top)
                self.memory.write(data)
                argument = top
            words[register] = argument
        words[RSP] = (top & ~15) - 8
        self.memory.seek(words[RSP])
        self.memory.write(bytes(8))
        words[RIP] = address
        words[RAX] = 0
        # An interrupted system call is restarted only when these registers are restored.
        words[CALL] = (1 << 64) - 1
        self.registers(GENERAL, struct.pack("27Q", *words))
        held = []
        while True:
            ptrace(CONT, self.pid)
            status = self.wait()
            number = status >> 8 & 0xFF
            if number == signal.SIGSEGV:
                break
            if status >> 16 == 0:
                held.append(number)
        words = struct.unpack("27Q", self.registers(GENERAL))
        if words[RIP] != 0:
            raise SystemExit(f"the function died at {words[RIP]:#x}")
        self.registers(EXTENDED, kept[1])
        self.registers(GENERAL, kept[0])
        for number in held:
            os.kill(self.pid, number)
        return words[RAX]


def main(pid, *words):
    results = []
    with Stopped(int(pid)) as stopped:
        def value(word):
            if re.fullmatch(r"\$\d+", word):
                return results[int(word[1:]) - 1]
            if re.fullmatch(r"\w+:\w+", word):
                return stopped.read(find(pid, *word.split(":")))
            return int(word) if word.isdigit() else word
        call = []
        for word in [*words, "--"]:
            if word != "--":
                call.append(word)
                continue
            library, function, *arguments = call
            results.append(stopped.call(find(pid, library, function), *map(value, arguments)))
            print(f"${len(results)} = {results[-1]}")
            call = []


if __name__ == "__main__":
    main(*sys.argv[1:])
