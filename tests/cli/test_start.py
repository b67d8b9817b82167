"""The command before it does anything: what `--help` loads, completion in each shell, and colours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kafkabuf.cli import _COMMANDS

# They take most of the time where they are loaded. `--help` has 250 ms.
NEEDLESS = {
    "asyncio", "concurrent.futures", "confluent_kafka", "crc32c", "email", "kafkabuf.append._producer",
    "kafkabuf.config", "kafkabuf.producer", "kio", "matplotlib", "numpy", "pyarrow", "pygments", "pyspark", "ssl",
    "urllib.request",
}  # fmt: skip
PROGRAM = """
import json, sys
before = {*sys.modules}
sys.argv = ["kafkabuf", *sys.argv[1:], "--help"]
from kafkabuf.__main__ import main
try:
    main()
except SystemExit as ended:
    print(json.dumps([ended.code, sorted({*sys.modules} - before)]), file=sys.stderr)
"""


@pytest.mark.parametrize("words", [[], *([name] for name in sorted(_COMMANDS))], ids=" ".join)
def test_help_loads_only_what_it_prints(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"Usage: {' '.join(['kafkabuf', *words])} ")
    code, modules = json.loads(done.stderr)
    assert code == 0
    assert NEEDLESS & {*modules} == set()
    assert len(modules) <= 165  # on Python 3.11; rich and click are the most


INTERRUPTED = """
import builtins, sys
def interrupted(name, *arguments, found=builtins.__import__):
    if name == "{module}":
        raise KeyboardInterrupt
    return found(name, *arguments)
builtins.__import__ = interrupted
from kafkabuf.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["kafkabuf.errors", "kafkabuf.extras", "click", "kafkabuf.cli.output"])
def test_ctrl_c_in_an_import_ends_the_command_in_silence(module: str) -> None:
    program = [sys.executable, "-c", INTERRUPTED.format(module=module), "config"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


# ---- completion


BASH = """
eval "$(kafkabuf completion bash)"
complete -p kafkabuf > /dev/null || exit 1
COMP_WORDS=({words}) COMP_CWORD={last} COMPREPLY=()
_kafkabuf_completion kafkabuf
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
autoload -Uz compinit && compinit -D
eval "$(kafkabuf completion zsh)"
[[ $_comps[kafkabuf] == _kafkabuf_completion ]] || exit 1
_describe() {{ print -rl -- ${{(P)3}}; }}
compadd() {{ print -rl -- ${{(P)@[-1]}}; }}
words=({words}) CURRENT={last}+1
_kafkabuf_completion
"""
FISH = """
kafkabuf completion fish | source
complete -C "{words}"
"""
SHELLS = {"bash": ["bash", "-c", BASH], "zsh": ["zsh", "-fc", ZSH], "fish": ["fish", "--no-config", "-c", FISH]}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("kafkabuf p", ["perf", "ping", "produce"]),
        ("kafkabuf produce --on-e", ["--on-error"]),
        ("kafkabuf produce --deli", ["--delimiter"]),
        ("kafkabuf produce --ty", ["--types"]),
        ("kafkabuf produce --format pa", ["parquet"]),
        ("kafkabuf spark a", ["abort"]),
    ],
)
def test_shell_completes_commands_options_and_choices(shell: str, words: str, completed: list[str]) -> None:
    *command, script = SHELLS[shell]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program = script.format(words=words, last=words.count(" "))
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*command, program], env=os.environ | {"PATH": search}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    # zsh and fish show the help behind the word.
    found = [line.partition(":" if shell == "zsh" else "\t")[0] for line in done.stdout.splitlines()]
    assert found == completed


# ---- colours


def ping(**environment: str) -> bytes:
    """What the command writes to a terminal about a port where nobody listens."""
    import pty

    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "kafkabuf", "ping", "-b", "127.0.0.1:1"]
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    with subprocess.Popen(command, stdout=end, stderr=end, env=kept | {"TERM": "xterm"} | environment) as process:
        os.close(end)
        written = b""
        while True:
            try:
                piece = os.read(terminal, 4096)
            except OSError:  # Linux: the other end is closed
                break
            if not piece:
                break
            written += piece
    os.close(terminal)
    assert process.returncode == 11
    assert b"Connection refused" in written
    return written


def test_terminal_has_colours_unless_no_color_is_set() -> None:
    assert b"\x1b[31m" in ping()
    assert b"\x1b[" not in ping(NO_COLOR="1")
