"""The command `scalar`: what it lists is what the rooms have, and it lists it at once."""

import subprocess
import sys
from pathlib import Path

import pytest

from scalar_retrieval.commands.scalar import _COMMANDS, help_lines, run

ROOT = Path(__file__).resolve().parent.parent
HELP = """
import sys
from scalar_retrieval.commands.scalar import run
run(["--help"])
print(*sys.modules)
for name in sys.argv[1:]:
    try:
        run([name, "--help"])
    except SystemExit:
        pass
print(*sys.modules)
"""
LINES = {name: about for found in _COMMANDS.values() for name, (_, about) in found.items()}


def test_help_imports_no_library_that_takes_long_and_that_of_all_commands_no_room():
    code = "import sys; from scalar_retrieval.commands.scalar import run; run(['--help']); print(*sys.modules)\n"
    code += (
        "for name in sys.argv[1:]:\n    try: run([name, '--help'])\n    except SystemExit: pass\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *LINES], cwd=ROOT, capture_output=True, text=True, check=True)
    first, loaded = (set(line.split()) for line in done.stdout.splitlines() if " scalar_retrieval.commands" in line)
    rooms = {name.split(".")[1] for name in first if name.startswith("scalar_retrieval.")}
    assert rooms == {"commands"} and "typer" not in first
    assert "scalar_retrieval.search.settings" in loaded
    assert not {"torch", "transformers", "numpy", "pyarrow", "pydantic", "httpx2"} & loaded


@pytest.mark.parametrize("name", LINES)
def test_a_line_is_how_the_help_of_its_command_begins(name, capsys):
    with pytest.raises(SystemExit) as ended:
        sys.exit(run([name, "--help"]))
    printed = " ".join(capsys.readouterr().out.split())
    assert not ended.value.code
    assert printed.lower().startswith(f"usage: scalar {name} ")
    assert LINES[name] in printed


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["--help"], 0)])
def test_without_a_command_it_prints_its_help_which_fits_a_terminal(arguments, code, capsys):
    assert run(arguments) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines == help_lines() and len(lines) < 24 and max(map(len, lines)) <= 80


def test_an_unknown_command_is_usage_and_names_the_nearest(capsys):
    assert run(["tran", "recipe.yaml"]) == 2
    assert "Error: No such command 'tran'. Did you mean 'train'?" in capsys.readouterr().err
