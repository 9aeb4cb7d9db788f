"""The former place of [`commands.errors`]; importing it loads all libraries."""

from commands.errors import FAULT, Commands, describe, plain, run_command, say, user_errors

__all__ = ["FAULT", "Commands", "describe", "plain", "run_command", "say", "user_errors"]
