"""What is imported when, who may import whom, and what the wheel holds."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import urnn

SOURCE = Path(urnn.__file__).parent
ROOT = SOURCE.parent.parent


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_urnn_does_not_import_torch():
    assert run("import urnn, sys; dir(urnn); print('torch' in sys.modules)") == "False"
    names = run("import urnn, sys; urnn.UnitaryRNN; print('torch' in sys.modules)")
    assert names == "True"


def test_public_names_resolve():
    for name in urnn.__all__:
        assert getattr(urnn, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'LSTM'"):
        _ = urnn.LSTM


def test_numba_and_the_laboratory_s_packages_are_not_imported():
    code = (
        "import urnn, torch, sys; urnn.UnitaryRNN(2, 3)(torch.zeros(4, 1, 2));"
        "print([m for m in ('numba', 'matplotlib', 'rich', 'triton') if m in sys.modules])"
    )
    assert run(code) == "[]"


def imports(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize(
    ("part", "forbidden"),
    [
        ("unitary", ["urnn.ops", "urnn.cell", "urnn.rnn", "urnn.functional"]),
        ("ops", ["urnn.cell", "urnn.rnn", "urnn.functional", "urnn.init"]),
        (".", ["urnn.lab"]),
    ],
)
def test_layers_do_not_reach_up(part, forbidden):
    for path in (SOURCE / part).rglob("*.py"):
        if "lab" in path.relative_to(SOURCE).parts:
            continue
        reached = [m for m in imports(path) if any(f"{m}.".startswith(f"{f}.") for f in forbidden)]
        assert not reached, f"{path} imports {reached}"


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {path.relative_to(SOURCE.parent).as_posix() for path in SOURCE.rglob("*.py")}
    info = f"urnn-{urnn.__version__}.dist-info/"
    assert {name for name in names if not name.startswith(info)} == modules | {"urnn/py.typed"}
    assert info + "licenses/LICENSE" in names
    metadata = zipfile.ZipFile(wheel).read(info + "METADATA").decode()
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    plain = {line.split()[1].split(">")[0] for line in required if "extra ==" not in line}
    assert plain == {"torch", "numpy", "numba"}
