"""A JUnit file, which CI servers show as tests: cases that are well, failed, or told nothing.

The form is that which Jenkins and GitLab read (``testsuite``, ``testcase``, ``failure``,
``skipped``, ``system-out``); no other element is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from dlperf_hpc.errors import printable


@dataclass(frozen=True)
class Entry:
    """One test: ``failure`` is why it failed, ``skipped`` why it says nothing; '' for neither.
    ``output`` is shown with it."""

    group: str
    name: str
    failure: str = ""
    skipped: str = ""
    output: str = ""


def junit(suite: str, tests: Sequence[Entry]) -> bytes:
    """The file's content."""
    root = ElementTree.Element(
        "testsuite",
        name=printable(suite),
        tests=str(len(tests)),
        failures=str(sum(bool(test.failure) for test in tests)),
        skipped=str(sum(bool(test.skipped) for test in tests)),
        errors="0",
    )
    for test in tests:
        element = ElementTree.SubElement(
            root, "testcase", classname=printable(test.group), name=printable(test.name)
        )
        if test.failure:
            ElementTree.SubElement(element, "failure", message=printable(test.failure))
        elif test.skipped:
            ElementTree.SubElement(element, "skipped", message=printable(test.skipped))
        if test.output:
            lines = "\n".join(map(printable, test.output.splitlines()))
            ElementTree.SubElement(element, "system-out").text = lines
    ElementTree.indent(root)
    made: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return made + b"\n"
