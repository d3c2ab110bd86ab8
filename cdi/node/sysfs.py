"""Reads files of sysfs without trusting them: a sysroot may be anyone's.

A file that is not there is None to whoever may do without it. Everything else that is not as
expected is a FileError, whose message names the file, and what was expected and found.
"""

from __future__ import annotations

import os
import stat

MAX_FILE = 8192
"""Bytes read of one file. Sysfs gives at most a page, and what is read here takes under 1 KiB."""


class FileError(Exception):
    """A file that cannot be used; the message names it, and what was expected and found."""


class Properties:
    """The ``name value`` lines of a KFD file, read when they are asked for by name."""

    def __init__(self, path: str) -> None:
        text = read(path)
        if text is None:
            raise FileError(f"expected KFD properties, found no file {path}")
        if not text.strip():
            raise FileError(
                f"expected KFD properties in {path}, found nothing: this process may not see the"
                " GPU (device cgroup)"
            )
        self.path = path
        self._lines = f"\n{text}\n"

    def __contains__(self, name: str) -> bool:
        return f"\n{name} " in self._lines

    def text(self, name: str, default: str | None = None) -> str:
        """Return a value as it stands; without a default it must be there."""
        key = f"\n{name} "
        start = self._lines.find(key)
        if start >= 0:
            start += len(key)
            return self._lines[start : self._lines.index("\n", start)]
        if default is None:
            raise FileError(f"expected {name} in {self.path}, found no such line")
        return default

    def number(self, name: str, limit: int, default: int | None = None) -> int:
        """Return a decimal value below a limit; without a default it must be there."""
        if default is not None and name not in self:
            return default
        return parse_number(self.text(name).strip(), 10, limit, f"{name} in {self.path}")


def read(path: str) -> str | None:
    """Return what a file holds; None if there is no such file.

    Only regular files are read, and never waited for: a sysroot may be anyone's.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise FileError(f"expected to read {path}, found: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise FileError(f"expected {path} to be a file, found something else")
        data = os.read(handle, MAX_FILE)
    except OSError as error:
        raise FileError(f"expected to read {path}, found: {error.strerror}") from None
    finally:
        os.close(handle)
    if len(data) == MAX_FILE:
        raise FileError(f"expected less than {MAX_FILE} bytes in {path}, found more")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise FileError(f"expected text in {path}, found binary data") from None
    if "\0" in text:
        raise FileError(f"expected text in {path}, found NUL characters")
    return text


def read_quietly(path: str) -> str | None:
    """Return what a file holds; None if it cannot be read."""
    try:
        return read(path)
    except FileError:
        return None


def listing(folder: str) -> list[str] | None:
    """Return the names in a folder; None if there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(f"expected to list {folder}, found: {error.strerror}") from None


def numbered(folder: str) -> list[int] | None:
    """Return the numbered entries of a folder, ascending; None if there is no such folder."""
    names = listing(folder)
    if names is None:
        return None
    return sorted({int(name) for name in names if is_decimal(name) and len(name) <= 9})


def read_number(path: str, base: int, limit: int) -> int | None:
    """Return the number in a file, None if there is no such file."""
    text = read(path)
    return None if text is None else parse_number(text.strip(), base, limit, path)


def parse_number(text: str, base: int, limit: int, place: str) -> int:
    """Return the number that a text is, with or without ``0x`` if hexadecimal."""
    digits = text.removeprefix("0x") if base == 16 else text
    # int() alone would take signs, underscores and the digits of other scripts.
    if digits.isascii() and digits.isalnum() and len(digits) <= 20:
        try:
            number = int(digits, base)
        except ValueError:
            pass
        else:
            if number < limit:
                return number
    raise FileError(f"expected a number below {limit:#x} as {place}, found {shown(text)}")


def is_decimal(text: str) -> bool:
    """Tell whether a text is made of the digits 0 to 9 and nothing else."""
    return text.isascii() and text.isdecimal()


def shown(text: str) -> str:
    """Return a foreign text fit for one line of a message."""
    return ascii(text[:40])
