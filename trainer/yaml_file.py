"""YAML that a person wrote: one mapping, read so that nothing in it is taken in silence for something else."""

from pathlib import Path
from typing import Any

import yaml

_MOST_BYTES = 1_000_000


class _Loader(yaml.SafeLoader):
    """Plain values alone. Of two equal keys YAML would take the last; a few aliases can stand for gigabytes."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not supported", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                problem = f"a field must be a name, got {key.value!r}" if isinstance(key.value, str) else "bad field"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"`{key.value}` is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path, what: str) -> dict[str, Any]:
    """
    Read a mapping of names to values.

    Args:
        path (`str` or `Path`): the file.
        what (`str`): what it should be, for messages: `"recipe"`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not YAML, not a mapping, names a field twice, or uses aliases; the message names the line.
    """
    path = Path(path)
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "no file" if not path.exists() else "no regular file"
        raise FileNotFoundError(f"No {what} at {path}: there is {kind}.")
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} is no {what}: it has {path.stat().st_size} bytes, at most {_MOST_BYTES} are read.")
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}). Save it as UTF-8."
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f" in line {mark.line + 1}"
        raise ValueError(f"{path} is not a {what}{line}: {error.problem or error.context}.") from error
    except (RecursionError, ValueError, yaml.YAMLError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{path} is not a {what}: {reason}") from error
    if not isinstance(content, dict):
        got = "nothing" if content is None else type(content).__name__
        raise ValueError(f"{path} must be a mapping of fields to values, got {got}.")
    return content


__all__ = ["read_yaml"]
