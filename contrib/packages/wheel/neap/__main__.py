"""`python -m neap ...` is the command `neap ...`. A script in the program's place is run by this Python:
`python -m neap run script.py`, `python -m neap pagein -o - -- script.py`."""
import os
import sys
import sysconfig


def command():
    """The command that came with this package: beside it (pip install --target), or where pip puts scripts."""
    packages = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # --prefix, and environments that are put upon each other (uv run --with), have scripts beside lib/pythonX.Y.
    places = [os.path.join(packages, "bin"), os.path.normpath(os.path.join(packages, "../../../bin"))]
    places += [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    for place in places:
        path = os.path.join(place, "neap")
        if os.access(path, os.X_OK):
            return path
    sys.exit(f"neap: there is no command neap in {' or '.join(places)}; install the package again: pip install neap")


def main():
    arguments = sys.argv[1:]
    # The program: behind the name of the command, or behind options and `--`.
    program = 1 if arguments[1:] and not arguments[1].startswith("-") else [*arguments, "--"].index("--") + 1
    if arguments[program:] and arguments[program].endswith(".py"):
        arguments[program:program] = [sys.executable]
    path = command()
    os.execv(path, [path, *arguments])


main()
