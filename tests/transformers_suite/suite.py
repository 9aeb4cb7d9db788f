"""The mixins of transformers' own test suite, of exactly the installed version.

Wheels do not hold them; the source distribution does. `python tests/transformers_suite/suite.py` fetches it once, into
the environment's folder. Modules that the distribution lacks, and that no test here needs, are empty.
"""

import importlib.util
import subprocess
import sys
import tarfile
import tempfile
import types
from pathlib import Path
from unittest import mock

import transformers

FOLDER = Path(sys.prefix) / f"transformers-suite-{transformers.__version__}"
_PACKAGE = "transformers_tests"
_ABSENT = {
    f"{_PACKAGE}.exporters.test_export": {"ExportTesterMixin": type("ExportTesterMixin", (), {})},
    f"{_PACKAGE}.generation.test_utils": {"GenerationTesterMixin": type("GenerationTesterMixin", (), {})},
    f"{_PACKAGE}.utils.test_configuration_utils": {
        "config_common_kwargs": {"return_dict": False, "output_hidden_states": True, "chunk_size_feed_forward": 5}
    },
    "fetch_hub_objects_for_ci": {"url_to_local_path": lambda url: url},
}


def is_here() -> bool:
    """Whether the mixins can be imported: `make suite` fetches them and what they need."""
    return FOLDER.is_dir() and importlib.util.find_spec("parameterized") is not None


def fetch() -> Path:
    """Download the source distribution and keep its tests; does nothing if they are there."""
    target = FOLDER / _PACKAGE
    if target.is_dir():
        return target
    with tempfile.TemporaryDirectory() as folder:
        wanted = f"transformers=={transformers.__version__}"
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation",
             "--no-binary", ":all:", "--dest", folder, wanted],
            check=True,
        )  # fmt: skip
        (archive,) = Path(folder).glob("transformers-*.tar.gz")
        with tarfile.open(archive) as source:
            top = source.next().name.split("/")[0]
            tests = [member for member in source if member.name.startswith(f"{top}/tests/")]
            source.extractall(folder, tests, filter="data")
        FOLDER.mkdir(exist_ok=True)
        (Path(folder) / top / "tests").rename(target)
    return target


def load(name: str) -> types.ModuleType:
    """Import one module of the suite, `"test_modeling_common"` say."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
        for absent, content in _ABSENT.items():
            sys.modules[absent] = types.ModuleType(absent)
            vars(sys.modules[absent]).update(content)
    # The suite imports the library from the folder above, where its repository has it.
    with mock.patch("transformers.utils.direct_transformers_import", lambda folder: transformers):
        return importlib.import_module(f"{_PACKAGE}.{name}")


if __name__ == "__main__":
    print(fetch())
