"""The browser of the tests of pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from browser import Browser


@pytest.fixture(scope="module")
def opened_browser() -> Iterator[Browser]:
    """One for a file of tests."""
    from browser import browser  # selenium, which other tests do without

    with browser() as opened:
        yield opened


@pytest.fixture
def chromium(opened_browser: Browser) -> Iterator[Browser]:
    """A browser in which no page says a word on the console, and none asks for anything."""
    yield opened_browser
    assert opened_browser.messages() == []
    assert opened_browser.requests() == []
