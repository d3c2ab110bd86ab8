"""What `make test` runs."""

import re

from tests.captures import REPOSITORY


def test_every_folder_with_tests_is_run() -> None:
    listed = re.search(r"^FOLDERS := (.+)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert listed
    there = {
        path.relative_to(REPOSITORY / "tests").parts[0]
        for path in (REPOSITORY / "tests").glob("**/test_*.py")
    }
    assert sorted(listed[1].split()) == sorted(there)
