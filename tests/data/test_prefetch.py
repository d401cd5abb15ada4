"""Items made ahead, or taken in behind, by a thread: the same items, errors in their place, few alive."""

from __future__ import annotations

import threading

import pytest

from duogp.data.prefetch import ahead, behind


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


@pytest.mark.parametrize("depth", [1, 3])
def test_items_are_taken_in_behind_in_their_order(depth):
    found = []
    before = threading.active_count()
    with behind(found.append, depth) as give:
        for i in range(50):
            give(i)
    assert found == list(range(50))
    assert threading.active_count() == before


def test_one_item_waits_behind_and_no_more():
    begun, go_on = threading.Event(), threading.Event()
    found = []

    def take(item):
        begun.set()
        assert go_on.wait(10)
        found.append(item)

    with behind(take) as give:
        give(1)
        assert begun.wait(10)
        give(2)  # waits
        third = threading.Thread(target=give, args=(3,))
        third.start()
        third.join(0.05)
        assert third.is_alive()  # there is no room
        go_on.set()
        third.join(10)
    assert found == [1, 2, 3]


def test_an_error_behind_is_raised_by_the_next_call_or_at_the_end():
    def take(item):
        raise OSError("no space left on the device")

    def many(count):
        with behind(take) as give:
            for i in range(count):
                given.append(i)
                give(i)

    given = []
    with pytest.raises(OSError, match="no space"):
        many(1)
    with pytest.raises(OSError, match="no space"):
        many(1000)
    assert len(given) < 1000


def test_an_error_of_the_caller_drops_what_waits():
    begun, go_on = threading.Event(), threading.Event()
    found = []

    def take(item):
        begun.set()
        assert go_on.wait(10)
        found.append(item)

    def fail():
        with behind(take, depth=3) as give:
            give(1)
            assert begun.wait(10)
            give(2)
            threading.Timer(0.05, go_on.set).start()
            raise ValueError("halfway")

    with pytest.raises(ValueError, match="halfway"):
        fail()
    assert found == [1]
