"""Calls that change the disk, of which one fails, or kills the process."""

import builtins
import errno
import io
import os

import pytest


class Killed(BaseException):
    """The process was killed: none of its later calls changes the disk."""


class Faults:
    """
    Let the n-th call that changes the disk fail, and all later ones if `stays`; without a number, none.

    `number` counts the calls. What is written by a call that fails is half written.
    """

    def __init__(self, patched: pytest.MonkeyPatch, failing: int, stays: bool, error: int | None = errno.ENOSPC):
        self.number = 0
        self.failing = failing
        self.stays = stays
        self.error = error  # `None`: the process is killed
        changing = ("fsync", "replace", "rename", "mkdir")
        if error is None:
            changing += ("unlink",)  # which also works on a full disk
        for name in changing:
            patched.setattr(os, name, self._wrapped(getattr(os, name)))
        self._open = builtins.open
        for module in (builtins, io):
            patched.setattr(module, "open", self._opened)

    def call(self, *names: str) -> None:
        self.number += 1
        if self.number == self.failing or (self.stays and self.number > self.failing > 0):
            if self.error is None:
                raise Killed
            raise OSError(self.error, os.strerror(self.error), *names)

    def _wrapped(self, function):
        def call(*arguments, **options):
            is_open = isinstance(arguments[0], int)  # the system does not know the names of open files
            self.call(*([] if is_open else [os.fspath(arguments[0])]))
            return None if function.__name__ == "fsync" else function(*arguments, **options)

        return call

    def _opened(self, file, mode="r", *arguments, **options):
        if not set(mode) & set("wax+"):
            return self._open(file, mode, *arguments, **options)
        self.call(os.fspath(file))
        return _Stream(self._open(file, mode, *arguments, **options), self)


class _Stream(io.RawIOBase):
    """A file whose first write is a call that may fail."""

    def __init__(self, stream, faults: Faults):
        self._stream = stream
        self._faults = faults
        self._is_empty = True

    def write(self, data):
        if self._is_empty:
            self._is_empty = False
            try:
                self._faults.call()
            except BaseException:
                self._stream.write(bytes(data)[: len(bytes(data)) // 2])
                raise
        return self._stream.write(data)

    def writable(self):
        return True

    def fileno(self):
        return self._stream.fileno()

    def flush(self):
        if not self._stream.closed:
            self._stream.flush()

    def close(self):
        self._stream.close()
        super().close()
