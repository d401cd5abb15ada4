"""Items made ahead by a thread: the same items, errors where they belong, no more alive than promised."""

from __future__ import annotations

import threading

import pytest

from duogp.data.prefetch import ahead


@pytest.mark.parametrize("depth", [1, 3])
def test_the_items_come_in_their_order(depth):
    assert list(ahead(range(50), depth)) == list(range(50))
    assert list(ahead([], depth)) == []


def test_an_error_is_raised_where_its_item_would_have_been():
    def items():
        yield 1
        yield 2
        raise ValueError("the file ends here")

    reader = ahead(items())
    assert [next(reader), next(reader)] == [1, 2]
    with pytest.raises(ValueError, match="the file ends here"):
        next(reader)


def test_one_item_is_made_ahead_and_no_more():
    made = []
    third = threading.Event()

    def items():
        for i in range(10):
            made.append(i)
            if i == 2:
                third.set()
            yield i

    reader = ahead(items())
    assert next(reader) == 0
    assert next(reader) == 1
    assert third.wait(10)  # made while the second is held
    assert made == [0, 1, 2]
    reader.close()


def test_a_caller_that_stops_ends_the_thread_and_closes_the_source():
    closed = threading.Event()

    def items():
        try:
            while True:
                yield 0
        finally:
            closed.set()

    before = threading.active_count()
    for _ in ahead(items()):
        break
    reader = ahead(items())
    next(reader)
    reader.close()
    assert closed.is_set()
    assert threading.active_count() == before
